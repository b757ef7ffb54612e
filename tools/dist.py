# SPDX-License-Identifier: Apache-2.0
"""Builds a release into dist/: wheel, source archive, executables, images, SBOM and checksums.

What is built is the content of HEAD, not of the working copy, and every time in the files is that
of the commit. The bytes depend on the commit only, those of images also on the
packages of Debian.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import executables
import images
import wheels
from wheels import Locked, read_lock

ROOT = Path(__file__).parents[1]
SBOM = "pipecd.cdx.json"
CHECKSUMS = "SHA256SUMS"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pipecd-dist"


def git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout


def export_commit(directory: Path) -> None:
    """Writes the files of HEAD into a directory."""
    with tarfile.open(fileobj=BytesIO(git("archive", "--format=tar", "HEAD"))) as archive:
        archive.extractall(directory, filter="data")


def write_build(source: Path, commit: str, epoch: int) -> None:
    """Writes what `version` prints of a release."""
    date = datetime.fromtimestamp(epoch, UTC).strftime("%Y%m%d-%H%M%S")
    text = json.dumps({"commit": commit, "date": date}) + "\n"
    (source / "src" / "pipecd" / "build.json").write_text(text)


def build_packages(source: Path, output: Path, epoch: int) -> None:
    """Builds the wheel and the source archive."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch), "TZ": "UTC", "LC_ALL": "C.UTF-8"}
    command = ["-m", "build", "--no-isolation", "--sdist", "--wheel", "--outdir", str(output)]
    subprocess.run(
        [sys.executable, *command, str(source)],
        env=environment,
        check=True,
        stdout=subprocess.DEVNULL,
    )


def component_of(package: Locked, *, scope: str) -> dict[str, Any]:
    """Describes a package; the hashes are those of all files that may be installed of it."""
    reference = f"pkg:pypi/{package.name}@{package.version}"
    component: dict[str, Any] = {
        "type": "library",
        "bom-ref": reference,
        "name": package.name,
        "version": package.version,
        "purl": reference,
        "scope": scope,
        "externalReferences": [
            {
                "type": "distribution",
                "url": f"https://pypi.org/simple/{package.name}/",
                "hashes": [{"alg": "SHA-256", "content": digest} for digest in package.hashes],
            }
        ],
    }
    if package.marker:
        component["properties"] = [{"name": "pipecd:marker", "value": package.marker}]
    return component


def bill_of_materials(source: Path, commit: str, epoch: int) -> dict[str, Any]:
    """The CycloneDX document of a commit, from its lock files.

    Required are the packages of a control plane and a piped, optional those of the extras.
    """
    project = tomllib.loads((source / "pyproject.toml").read_text())["project"]
    required = read_lock((source / "requirements" / "run.txt").read_text())
    packages = {**read_lock((source / "requirements" / "full.txt").read_text()), **required}
    # Not `pkg:pypi/…`: a package of that name on the public index is not ours.
    root = f"pkg:generic/{project['name']}@{project['version']}"
    references = {project["name"]: root}
    references |= {name: f"pkg:pypi/{name}@{p.version}" for name, p in packages.items()}
    needs: dict[str, list[str]] = {reference: [] for reference in references.values()}
    for package in packages.values():
        for needing in package.needed_by:
            needs[references[needing]].append(references[package.name])
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid5(NAMESPACE_URL, f'{root}#{commit}')}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(epoch, UTC).isoformat(),
            "component": {
                "type": "application",
                "bom-ref": root,
                "name": project["name"],
                "version": project["version"],
                "purl": root,
                "licenses": [{"license": {"id": project["license"]}}],
                "properties": [{"name": "pipecd:commit", "value": commit}],
            },
        },
        "components": [
            component_of(package, scope="required" if name in required else "optional")
            for name, package in sorted(packages.items())
        ],
        "dependencies": [
            {"ref": reference, "dependsOn": sorted(set(needs[reference]))}
            for reference in sorted(needs)
        ],
    }


def checksums(directory: Path) -> Iterator[str]:
    for file in sorted(directory.iterdir()):
        yield f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}"


def build_programs(arguments: argparse.Namespace, source: Path, built: Path, epoch: int) -> None:
    """Builds the executables and images that are wanted."""
    wanted = {"executables", "images"} - set(arguments.without)
    wheel = next(built.glob("*.whl"))
    for architecture in arguments.architecture if wanted else ():
        machine = executables.ARCHITECTURES[architecture]
        found = wheels.download(source, CACHE, machine, arguments.python)
        if "executables" in wanted:
            executables.build(source, wheel, built, found, architecture)
        if "images" in wanted:
            images.build(
                source, wheel, built, found,
                epoch=epoch, architecture=architecture, debian=arguments.debian_packages,
            )  # fmt: skip


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    this = {machine: name for name, machine in executables.ARCHITECTURES.items()}
    add = parser.add_argument
    add("--without", nargs="+", default=[], choices=["executables", "images"],
        help="what to leave out")  # fmt: skip
    add("--architecture", nargs="+", default=[this.get(os.uname().machine, "amd64")],
        choices=list(executables.ARCHITECTURES), help="of executables and images")  # fmt: skip
    add("--python", nargs="+", default=list(wheels.PYTHONS), choices=wheels.PYTHONS,
        help="the versions of Python that executables run on; all")  # fmt: skip
    add("--debian-packages", type=Path, metavar="DIRECTORY",
        help="the .deb files of the images, instead of a download of those of today")  # fmt: skip
    arguments = parser.parse_args()
    if images.PYTHON not in arguments.python and "images" not in arguments.without:
        parser.error(f"images need Python {images.PYTHON}: add it, or --without images")
    return arguments


def main() -> None:
    arguments = read_arguments()
    commit = git("rev-parse", "HEAD").decode().strip()
    epoch = int(git("show", "--no-patch", "--format=%ct", "HEAD"))
    output = ROOT / "dist"
    with tempfile.TemporaryDirectory() as directory:
        source, built = Path(directory) / "source", Path(directory) / "dist"
        export_commit(source)
        write_build(source, commit, epoch)
        build_packages(source, built, epoch)
        sbom = bill_of_materials(source, commit, epoch)
        (built / SBOM).write_text(json.dumps(sbom, indent=2) + "\n")
        build_programs(arguments, source, built, epoch)
        sums = "".join(f"{line}\n" for line in checksums(built))
        (built / CHECKSUMS).write_text(sums)
        shutil.rmtree(output, ignore_errors=True)
        shutil.copytree(built, output)
    print(f"dist/ of {commit[:12]}:\n{sums}", end="")


if __name__ == "__main__":
    main()
