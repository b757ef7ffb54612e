# SPDX-License-Identifier: Apache-2.0
"""A release is the same bytes from the same commit, and says what it consists of."""

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def clones(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The releases of two clones, which differ in path, file modes, time zone and stray files."""
    if not (ROOT / ".git").exists():
        pytest.skip("the tests do not run in a Git repository")
    releases: list[Path] = []
    for name, umask, zone in (("one", 0o022, "UTC"), ("a longer path/two", 0o077, "Asia/Tokyo")):
        clone = tmp_path_factory.mktemp("clones") / name
        clone.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            ["git", "clone", "-q", "--no-local", str(ROOT), str(clone)], check=True, umask=umask
        )
        (clone / "src" / "pipecd" / f"stray_{umask}.py").touch()
        subprocess.run(
            [sys.executable, "tools/dist.py"],
            cwd=clone,
            check=True,
            umask=umask,
            env={**os.environ, "TZ": zone},
            capture_output=True,
        )
        releases.append(clone / "dist")
    return releases[0], releases[1]


def test_two_clones_build_the_same_bytes(clones: tuple[Path, Path]) -> None:
    one, two = ({file.name: file.read_bytes() for file in dist.iterdir()} for dist in clones)
    assert one.keys() == two.keys()
    assert {name for name in one if one[name] != two[name]} == set()


def test_the_checksums_are_those_of_every_other_file(clones: tuple[Path, Path]) -> None:
    lines = (clones[0] / "SHA256SUMS").read_text().splitlines()
    sums = {name: digest for digest, name in (line.split("  ") for line in lines)}
    files = {file for file in clones[0].iterdir() if file.name != "SHA256SUMS"}
    assert sums == {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    assert {Path(name).suffix for name in sums} == {".whl", ".gz", ".json"}


def test_the_wheel_has_what_is_committed_and_nothing_else(clones: tuple[Path, Path]) -> None:
    wheel = next(clones[0].glob("*.whl"))
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("pipecd/")}
    listed = subprocess.run(
        ["git", "ls-tree", "-r", "--name-only", "HEAD", "src/pipecd"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.splitlines()  # fmt: skip
    assert packed == {name.removeprefix("src/") for name in listed}


def read_sbom(clones: tuple[Path, Path]) -> dict[str, Any]:
    return json.loads((clones[0] / "pipecd.cdx.json").read_text())


def test_the_sbom_is_valid_cyclonedx(clones: tuple[Path, Path]) -> None:
    text = (clones[0] / "pipecd.cdx.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None


def test_the_sbom_has_every_locked_package_with_its_hashes(clones: tuple[Path, Path]) -> None:
    components = {component["name"]: component for component in read_sbom(clones)["components"]}
    locked = (ROOT / "requirements" / "full.txt").read_text()
    names = {line.partition("==")[0] for line in locked.splitlines() if line[:1].isalnum()}
    assert set(components) == names
    hashes = {
        entry["content"]
        for component in components.values()
        for entry in component["externalReferences"][0]["hashes"]
    }
    assert len(hashes) == locked.count("--hash=sha256:")
    assert components["grpcio"]["scope"] == "required"
    assert components["boto3"]["scope"] == "optional"


def test_the_sbom_says_which_package_needs_which(clones: tuple[Path, Path]) -> None:
    needs = {entry["ref"]: entry["dependsOn"] for entry in read_sbom(clones)["dependencies"]}
    reachable, found = list(needs["pkg:generic/pipecd@0.1.0"]), set[str]()
    while reachable:
        reference = reachable.pop()
        if reference not in found:
            found.add(reference)
            reachable += needs[reference]
    assert found == needs.keys() - {"pkg:generic/pipecd@0.1.0"}
