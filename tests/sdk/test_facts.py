# SPDX-License-Identifier: Apache-2.0
"""What a plugin reads of a repository."""

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


FOUND = [
    pytest.param({}, None, id="no directory"),
    pytest.param({"a.yaml": shelf(1, "EventWatcher")}, None, id="nothing of the kind"),
    pytest.param({"a.txt": shelf(1), "sub/a.yaml": shelf(2)}, None, id="files that do not count"),
    pytest.param({"b.yml": shelf(2), "a.yaml": shelf(1), "c.json": shelf(3)}, 1, id="the first by name"),
    pytest.param({"a.yaml": "- a list", "b.yaml": "{", "c.yaml": "just: a mapping", "d.yml": shelf(4)}, 4, id="whatever others keep there"),
]  # fmt: skip


@pytest.mark.parametrize(("files", "books"), FOUND)
def test_shared_configuration_with(
    tmp_path: Path, files: dict[str, str], books: int | None
) -> None:
    for name, text in files.items():
        path = tmp_path / ".pipe" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = read(tmp_path)
    assert (found and found.books) == books


@pytest.mark.parametrize(
    ("text", "told"),
    [
        pytest.param(shelf("many"), r"\.pipe/a\.yaml:3:\d+: spec\.books", id="a wrong value"),
        pytest.param(
            "kind: [", r"\.pipe/a\.yaml:2:1: not valid YAML", id="no YAML, and nothing else to read"
        ),
    ],
)
def test_a_mistake_in_shared_configuration_is_told(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / ".pipe").mkdir()
    (tmp_path / ".pipe" / "a.yaml").write_text(text)
    with pytest.raises(UserMistake, match=told):
        read(tmp_path)


def test_fields_that_do_not_count_are_told_by_object() -> None:
    text = """
apiVersion: pipecd.dev/v1beta1
kind: Application
spec:
  driftDetection:
    ignoreFields: ["apps/v1:Deployment:default:web#spec.replicas"]
"""
    source = Source(Path(), "c0ffee", text.encode(), "app.pipecd.yaml", Path())
    assert source.ignored_fields() == {"apps/v1:Deployment:default:web": ("spec.replicas",)}
