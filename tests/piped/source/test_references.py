# SPDX-License-Identifier: Apache-2.0
"""What a file says about files above its own directory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecd.piped.source.needs import literal_prefix
from pipecd.piped.source.references import NONE, References, link_reference, references


@pytest.mark.parametrize(
    ("text", "paths", "climbs"),
    [
        pytest.param("resources:\n- ../../base\n", {"base"}, False, id="a base of Kustomize"),
        pytest.param('source = "../../modules/vpc"', {"modules/vpc"}, False, id="a module"),
        pytest.param("valueFiles: [../common.yaml]", {"common.yaml"}, False, id="values of Helm"),
        pytest.param('repository: "file://../../charts/x"', {"charts/x"}, False, id="a chart"),
        pytest.param(". ../../lib/log.sh && log", {"lib/log.sh"}, False, id="a script"),
        pytest.param('"$DIR/../lib/$NAME.sh"', {"lib"}, False, id="up to what is computed"),
        pytest.param("cat ../conf/*.yaml", {"conf"}, False, id="up to a pattern"),
        pytest.param("../lib-$ENV/x", {"lib-"}, False, id="the beginning of a name"),
        pytest.param("a/../../b/./c", {"b/c"}, False, id="ways there and back"),
        pytest.param("x: ../a/../b", {"b"}, False, id="a way back below"),
        pytest.param("--from=../a:../b", {"a", "b"}, False, id="several in a word"),
        pytest.param("cd ..", set(), True, id="a directory above"),
        pytest.param("cd ../..; make", set(), True, id="two directories above"),
        pytest.param("cat ../$NAME", set(), True, id="a name that is computed"),
        pytest.param("include { path = find_in_parent_folders() }", set(), True, id="Terragrunt"),
        pytest.param('cd "$(git rev-parse --show-toplevel)"', set(), True, id="the root by git"),
        pytest.param('cd "$(dirname "$PWD")"', set(), True, id="the directory above, computed"),
        pytest.param("Path(__file__).parents[2]", set(), True, id="Python that climbs"),
        pytest.param('. "$(dirname "$0")/log.sh"', set(), False, id="a script beside"),
        pytest.param("Path(__file__).parent / 'x'", set(), False, id="Python that stays"),
        pytest.param("for i in {1..3}; do :; done", set(), False, id="a range"),
        pytest.param("and so on... git log main..next", set(), False, id="dots that are no path"),
        pytest.param("version: 1.2..3", set(), False, id="dots in a number"),
        pytest.param("", set(), False, id="nothing"),
    ],
)
def test_references(text: str, paths: set[str], climbs: bool) -> None:
    found = references(text.encode())
    assert found.climbs is climbs
    if not climbs:
        assert found.paths == paths


def test_what_is_no_text_has_no_references() -> None:
    assert references(b"\x7fELF\0../lib/x") == NONE


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        pytest.param("here/file", NONE, id="inside"),
        pytest.param("/etc/passwd", NONE, id="this machine"),
        pytest.param("../shared/x", References(frozenset({"shared/x"})), id="beside"),
        pytest.param("a/../../x", References(frozenset({"x"})), id="a detour"),
        pytest.param("..", References(climbs=True), id="above"),
    ],
)
def test_links(target: str, expected: References) -> None:
    assert link_reference(target) == expected


names = st.from_regex(r"[a-z0-9_][a-z0-9_.-]{0,8}[a-z0-9_]", fullmatch=True)


@given(
    ups=st.integers(1, 4),
    below=st.lists(names, min_size=1, max_size=4),
    marks=st.sampled_from(['"{}"', "'{}'", " {} ", "[{}]", "- {}\n", "={};", "\n{}"]),
)
def test_a_path_upwards_is_found_between_any_marks(ups: int, below: list[str], marks: str) -> None:
    path = "../" * ups + "/".join(below)
    assert "/".join(below) in references(marks.format(path).encode()).paths


@given(st.binary(max_size=200))
def test_any_bytes_are_read(content: bytes) -> None:
    for path in references(content).paths:
        assert path
        assert ".." not in path.split("/")
        assert not path.startswith("/")


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        pytest.param("lib/go", "lib/go", id="a path"),
        pytest.param("lib/**/*.go", "lib", id="a glob"),
        pytest.param("^lib/go/.*$", "lib/go", id="a regular expression"),
        pytest.param("/lib/", "lib", id="with slashes around it"),
        pytest.param("*.yaml", "", id="anywhere"),
        pytest.param("../x", "", id="outside"),
        pytest.param("", "", id="nothing"),
    ],
)
def test_the_certain_part_of_a_pattern(pattern: str, expected: str) -> None:
    assert literal_prefix(pattern) == expected
