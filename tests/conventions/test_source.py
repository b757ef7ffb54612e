# SPDX-License-Identifier: Apache-2.0
"""Conventions of the source code that no linter checks."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "pipecd"
TREES = ("src", "tests", "bench", "tools")
FORBIDDEN_MODULES = {"utils", "util", "common", "helpers", "misc", "base", "core", "lib"}
LONGEST_FILE, LONGEST_FUNCTION = 600, 80


def is_generated(path: Path) -> bool:
    return "_pb2" in path.name


def written_files(tree: str) -> list[Path]:
    return sorted(p for p in (ROOT / tree).rglob("*.py") if not is_generated(p))


EVERY_FILE = [p for tree in TREES for p in written_files(tree)]
PRODUCT_FILES = written_files("src")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_no_file_is_longer_than_600_lines() -> None:
    long = {
        name_of(p): n for p in EVERY_FILE if (n := len(p.read_text().splitlines())) > LONGEST_FILE
    }
    assert long == {}


def test_no_function_is_longer_than_80_lines() -> None:
    long = {
        f"{name_of(path)}:{f.name}": f.end_lineno - f.lineno + 1
        for path in PRODUCT_FILES
        for f in functions(ast.parse(path.read_text()))
        if f.end_lineno and f.end_lineno - f.lineno + 1 > LONGEST_FUNCTION
    }
    assert long == {}


def test_no_module_is_named_utils() -> None:
    vague = [
        name_of(p) for p in PRODUCT_FILES if FORBIDDEN_MODULES & {p.stem, p.parent.name}
        # The generated packages carry the names of the wire.
        and "proto" not in p.parts
    ]  # fmt: skip
    assert vague == []


def test_class_names_are_unique_within_a_package() -> None:
    by_package: dict[tuple[str, str], list[str]] = {}
    for path in PRODUCT_FILES:
        package = name_of(path.parent)
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                by_package.setdefault((package, node.name), []).append(name_of(path))
    assert {key: paths for key, paths in by_package.items() if len(paths) > 1} == {}


def test_every_file_opens_with_its_licence_and_a_docstring() -> None:
    wrong = [
        name_of(path)
        for path in EVERY_FILE
        if not (text := path.read_text()).startswith("# SPDX-License-Identifier: Apache-2.0\n")
        or not ast.get_docstring(ast.parse(text))
    ]
    assert wrong == [], "begin with the SPDX line and say in one sentence what the module is for"


def tracked_files() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True
    ).stdout.decode()
    return [ROOT / n for n in listed.split("\0") if n and (ROOT / n).is_file()]


FORBIDDEN_TEXT = {
    "an unfinished thought": re.compile(r"\b(TODO|FIXME|XXX|HACK)\b"),
    "a path of somebody's machine": re.compile(r"(?<![\w/.])/(root|work|home/\w+)/"),
}


@pytest.mark.parametrize("what", FORBIDDEN_TEXT)
def test_no_file_carries(what: str) -> None:
    found: list[str] = []
    for path in tracked_files():
        if path == Path(__file__) or "spec" in path.parts or path.name == "LICENSE":
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        found += [
            f"{name_of(path)}:{i}: {line.strip()[:80]}"
            for i, line in enumerate(text.splitlines(), 1)
            if FORBIDDEN_TEXT[what].search(line)
        ]
    assert found == []


def test_the_import_contracts_hold() -> None:
    import sys

    done = subprocess.run(
        [str(Path(sys.executable).parent / "lint-imports")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
