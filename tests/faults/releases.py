# SPDX-License-Identifier: Apache-2.0
"""Earlier versions of our programs, from the history of this repository."""

import configparser
import io
import subprocess
import tarfile
import tomllib
from pathlib import Path

from faults.program import Release
from pipecd.model.errors import Unsupported

LAST_RELEASE = "404c2e0d"
"""The commit that stands for the last release, until there is a tag."""
_ROOT = Path(__file__).parents[2]


def sources_of(commit: str, directory: Path) -> Release:
    """The package of a commit, which runs with the dependencies of this checkout.

    Raises Unsupported if the commit is not there, as in an archive of the sources.
    """
    try:
        archive = subprocess.run(
            ["git", "archive", commit, "src", "pyproject.toml"],
            cwd=_ROOT,
            capture_output=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError) as e:
        raise Unsupported(f"the history of this checkout has no commit {commit}") from e
    directory.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as opened:
        opened.extractall(directory, filter="data")
    _write_entry_points(directory)
    return Release(sources=directory / "src")


def built_in_plugins(release: Release) -> set[str]:
    """The names of the plugins that a release of sources has."""
    assert release.sources is not None
    (file,) = release.sources.glob("*.dist-info/entry_points.txt")
    points = configparser.ConfigParser(delimiters=("=",))
    points.optionxform = str
    points.read_string(file.read_text())
    return {*points["pipecd.plugins"]}


def _write_entry_points(directory: Path) -> None:
    """Writes what an installation would know of the package: its own plugins, not those of today."""
    project = tomllib.loads((directory / "pyproject.toml").read_text())["project"]
    about = directory / "src" / f"{project['name']}-0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0\n")
    groups: dict[str, dict[str, str]] = project.get("entry-points", {})
    lines = (
        line
        for group, points in groups.items()
        for line in (f"[{group}]", *(f"{name} = {target}" for name, target in points.items()))
    )
    (about / "entry_points.txt").write_text("\n".join(lines))
