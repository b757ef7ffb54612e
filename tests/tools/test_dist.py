# SPDX-License-Identifier: Apache-2.0
"""A release is the same bytes from the same commit, and says what it consists of."""

import hashlib
import json
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from servers.server import free_port

ROOT = Path(__file__).parents[2]
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"

# One process builds the releases for all tests.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("dist")]


@pytest.fixture(scope="module")
def clones(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The releases of two clones, which differ in path, file modes, time zone and stray files."""
    if not (ROOT / ".git").exists():
        pytest.skip("the tests do not run in a Git repository")
    releases: list[Path] = []
    # Both releases are of one commit, also if somebody commits between them.
    source = ROOT
    for name, umask, zone in (("one", 0o022, "UTC"), ("a longer path/two", 0o077, "Asia/Tokyo")):
        clone = tmp_path_factory.mktemp("clones") / name
        clone.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            ["git", "clone", "-q", "--no-local", str(source), str(clone)], check=True, umask=umask
        )
        source = clone
        (clone / "src" / "pipecd" / f"stray_{umask}.py").touch()
        built = subprocess.run(
            [sys.executable, "tools/dist.py", "--without", "images", "--python", PYTHON],
            cwd=clone,
            check=False,
            umask=umask,
            env={**os.environ, "TZ": zone},
            capture_output=True,
            text=True,
        )
        assert built.returncode == 0, built.stderr
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
    assert {Path(name).suffix for name in sums} >= {".whl", ".gz", ".json"}
    programs = {name.partition("_v0.1.0_linux_")[0] for name in sums if "_linux_" in name}
    assert programs == {"launcher", "pipecd", "piped", "pipectl"}


def test_the_wheel_has_what_is_committed_and_nothing_else(clones: tuple[Path, Path]) -> None:
    wheel = next(clones[0].glob("*.whl"))
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("pipecd/")}
    listed = subprocess.run(
        ["git", "ls-tree", "-r", "--name-only", "HEAD", "src/pipecd", "docs/guide", "CHANGELOG.md"],
        cwd=clones[0].parent, check=True, capture_output=True, text=True,
    ).stdout.splitlines()  # fmt: skip
    code = {name.removeprefix("src/") for name in listed if name.startswith("src/")}
    shown = {name.removeprefix("docs/") for name in listed if not name.startswith("src/")}
    documentation = {f"pipecd/documentation/{name}" for name in shown}
    assert packed == code | documentation | {"pipecd/build.json"}


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


def executable(clones: tuple[Path, Path], program: str) -> str:
    return str(next(clones[0].glob(f"{program}_v*")))


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words,
        check=False,
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"], **environment},
    )


def test_an_executable_runs_with_nothing_but_python(
    clones: tuple[Path, Path], tmp_path: Path
) -> None:
    programs = ("launcher", "pipecd", "pipectl", "piped")
    commit, date = subprocess.check_output(
        ["git", "log", "-1", "--format=%H %cd", "--date=format-local:%Y%m%d-%H%M%S"],
        cwd=clones[0].parent, env={**os.environ, "TZ": "UTC"}, text=True,
    ).split()  # fmt: skip
    line = f"Version: v0.1.0, GitCommit: {commit}, BuildDate: {date}\n"
    for program in programs:
        file = executable(clones, program)
        for flag, expected in {"--version": line, "--help": f"Usage: {program}"}.items():
            ran = run(sys.executable, "-IS", file, flag, HOME=str(tmp_path))
            assert (ran.returncode, ran.stderr) == (0, "")
            assert ran.stdout.startswith(expected)
    installed = list((tmp_path / ".cache" / "pipecd" / "executables").iterdir())
    assert sorted(place.name.partition("-")[0] for place in installed) == list(programs)
    # Programs that it starts see the same packages, and those of the machine do not.
    python = str(
        next(place for place in installed if place.name.startswith("piped-")) / "bin" / "python"
    )
    assert run(python, "-c", "import pipecd, boto3; print(pipecd.__file__)").stdout.startswith(
        str(tmp_path)
    )
    assert run(python, "-c", "import pytest").returncode == 1


def test_an_executable_says_why_it_cannot_start(clones: tuple[Path, Path], tmp_path: Path) -> None:
    file = executable(clones, "pipectl")
    nowhere = run(sys.executable, file, "version", PIPECD_EXECUTABLES="/proc/nowhere")
    assert nowhere.returncode == 1
    assert "set PIPECD_EXECUTABLES to a directory" in nowhere.stderr
    assert "Traceback" not in nowhere.stderr
    # Left by another version of Python, or by an interrupted download.
    other = tmp_path / "pipectl"
    with zipfile.ZipFile(file) as packed, zipfile.ZipFile(other, "w") as changed:
        for name in packed.namelist():
            content = packed.read(name)
            if name == "release.json":
                content = content.replace(f'"{PYTHON}"'.encode(), b'"3.99"')
            changed.writestr(name, content)
    wrong = run(sys.executable, str(other), "version", PIPECD_EXECUTABLES=str(tmp_path / "p"))
    assert (wrong.returncode, "it needs Python 3.99" in wrong.stderr) == (1, True)
    assert not (tmp_path / "p").exists()


def test_programs_of_others_are_not_run(clones: tuple[Path, Path], tmp_path: Path) -> None:
    file = executable(clones, "pipectl")
    assert run(sys.executable, file, "version", PIPECD_EXECUTABLES=str(tmp_path)).returncode == 0
    next(tmp_path.iterdir()).chmod(0o777)
    ran = run(sys.executable, file, "version", PIPECD_EXECUTABLES=str(tmp_path))
    assert (ran.returncode, "writable by others" in ran.stderr) == (1, True)


MYSQL = """\
apiVersion: pipecd.dev/v1beta1
kind: ControlPlane
spec:
  datastore: {type: MYSQL, config: {url: "localhost:1", database: pipecd}}
  filestore: {type: LOCAL, config: {path: files}}
"""


def run_quickstart(pipecd: list[str], home: Path) -> None:
    """Runs the quickstart until it prints the address of the console, and ends it."""
    log = home / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*pipecd, "quickstart", "--port", str(free_port())],
            env={"HOME": str(home), "PATH": os.environ["PATH"]},
            stdout=output,
            stderr=output,
        )
    try:
        until = time.monotonic() + 100
        while "http://" not in log.read_text():
            assert process.poll() is None and time.monotonic() < until, log.read_text()
            time.sleep(0.2)
    finally:
        process.terminate()
        assert process.wait(60) == 0, log.read_text()


def test_the_executable_runs_the_quickstart(clones: tuple[Path, Path], tmp_path: Path) -> None:
    run_quickstart([sys.executable, "-IS", executable(clones, "pipecd")], tmp_path)


def test_the_wheel_alone_runs_the_quickstart_and_names_the_extra_that_is_missing(
    clones: tuple[Path, Path], tmp_path: Path
) -> None:
    """pipectl is packed with the dependencies of the wheel, and none of an extra."""
    assert (
        run(sys.executable, executable(clones, "pipectl"), "version", HOME=str(tmp_path)).returncode
        == 0
    )
    [place] = (tmp_path / ".cache" / "pipecd" / "executables").iterdir()
    pipecd = [str(place / "bin" / "python"), "-I", "-m", "pipecd"]
    run_quickstart(pipecd, tmp_path)
    (tmp_path / "mysql.yaml").write_text(MYSQL)
    (tmp_path / "key").write_text("k" * 64)
    files = [
        "--config-file",
        str(tmp_path / "mysql.yaml"),
        "--encryption-key-file",
        str(tmp_path / "key"),
    ]
    refused = run(*pipecd, "server", *files, HOME=str(tmp_path))
    assert refused.returncode == 1
    assert "no driver for MySQL: install the extra mysql" in refused.stderr.replace("; ", ": ")
    assert "Traceback" not in refused.stderr
