# SPDX-License-Identifier: Apache-2.0
"""A plugin reads the application file and the shared files of a repository."""

from pathlib import Path

import pytest

from pipecd.sdk import Source, Spec, UserMistake


class Shelf(Spec):
    """The `spec` of a kind of the tests."""

    books: int = 0


def shelf(books: object, kind: str = "Shelf") -> str:
    return f"apiVersion: pipecd.dev/v1beta1\nkind: {kind}\nspec: {{books: {books}}}\n"


def read(directory: Path) -> Shelf | None:
    source = Source(directory, "c0ffee", b"", "app.pipecd.yaml", directory / ".pipe")
    return source.shared_config("Shelf", Shelf)


CASES = [
    pytest.param({}, None, id="no directory"),
    pytest.param({"a.yaml": shelf(1, "EventWatcher")}, None, id="no file of the kind"),
    pytest.param({"a.txt": shelf(1), "sub/a.yaml": shelf(2)}, None, id="files with another suffix or in a subdirectory"),
    pytest.param({"b.yml": shelf(2), "a.yaml": shelf(1), "c.json": shelf(3)}, 1, id="the first by name"),
    pytest.param({"a.yaml": "- a list", "b.yaml": "{", "c.yaml": "just: a mapping", "d.yml": shelf(4)}, 4, id="other files that cannot be parsed"),
]  # fmt: skip


@pytest.mark.parametrize(("files", "books"), CASES)
def test_shared_configuration_is_read_from_the_first_file_of_the_kind(
    tmp_path: Path, files: dict[str, str], books: int | None
) -> None:
    for name, text in files.items():
        path = tmp_path / ".pipe" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    shared = read(tmp_path)
    assert (shared and shared.books) == books


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(shelf("many"), r"\.pipe/a\.yaml:3:\d+: spec\.books", id="a wrong value"),
        pytest.param(
            "kind: [", r"\.pipe/a\.yaml:2:1: not valid YAML", id="invalid YAML, and no other file"
        ),
    ],
)
def test_a_mistake_in_shared_configuration_is_reported(
    tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / ".pipe").mkdir()
    (tmp_path / ".pipe" / "a.yaml").write_text(text)
    with pytest.raises(UserMistake, match=message):
        read(tmp_path)


def test_ignored_fields_are_grouped_by_object() -> None:
    text = """
apiVersion: pipecd.dev/v1beta1
kind: Application
spec:
  driftDetection:
    ignoreFields: ["apps/v1:Deployment:default:web#spec.replicas"]
"""
    source = Source(Path(), "c0ffee", text.encode(), "app.pipecd.yaml", Path())
    assert source.ignored_fields() == {"apps/v1:Deployment:default:web": ("spec.replicas",)}
