# SPDX-License-Identifier: Apache-2.0
"""Versions of piped from a package index or a registry, each in a directory of its own."""

import asyncio
import sys
import zipfile
from pathlib import Path

import pytest

from pipecd.launcher.release import LAYER_TYPE, open_releases
from pipecd.model.errors import PipecdError, UserMistake
from pipecd.observe.version import build_version
from pipecd.wire.oci import Platform, parse_reference
from pipecd.wire.program_store import host_platform
from pipecd.wire.registry import Registry
from servers.registry import OciRegistry


def wheel(directory: Path, version: str, main: str) -> None:
    """Writes a wheel of one module."""
    name = f"pipecd-{version}"
    files = {
        "pipecd/__init__.py": "",
        "pipecd/__main__.py": main,
        f"{name}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: pipecd\nVersion: {version}\n",
        f"{name}.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{name}.dist-info/RECORD": "",
    }
    with zipfile.ZipFile(directory / f"{name}-py3-none-any.whl", "w") as packed:
        for path, text in files.items():
            packed.writestr(path, text)


# Installs packages into environments of its own, which takes most of a minute.
@pytest.mark.long
@pytest.mark.slow
async def test_each_version_of_a_package_is_installed_into_its_own_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    wheel(tmp_path, "7.1.0", "import sys\nprint('seven', *sys.argv[1:])\n")
    releases = open_releases("pip:pipecd", tmp_path / "home")
    program = await releases.program("v7.1.0", is_v0=False)
    process = await asyncio.create_subprocess_exec(*program, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    assert output.decode().split() == ["seven", "piped"]
    with pytest.raises(PipecdError, match=r"piped v7\.2\.0 cannot be installed: .*7\.2\.0"):
        await releases.program("v7.2.0", is_v0=False)
    assert [p.name for p in (tmp_path / "home" / "versions").iterdir()] == ["v7.1.0"]
    assert await releases.program(build_version(), is_v0=False) == (
        sys.executable, "-m", "pipecd", "piped",
    )  # fmt: skip
    await releases.remove_except({build_version()})
    assert list((tmp_path / "home" / "versions").iterdir()) == []


async def test_a_changed_version_is_refused_and_the_error_says_how_to_accept_it(
    tls_registry: OciRegistry,
    certificate: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", certificate[0])
    source = f"{tls_registry.address}/files/{{version}}"
    releases = open_releases(source, tmp_path)
    tls_registry.files["v7.1.0"] = b"#!/bin/sh\n# one\n"
    await releases.program("v7.1.0", is_v0=False)
    await releases.remove_except(set())
    tls_registry.files["v7.1.0"] = b"#!/bin/sh\n# two\n"
    known = tmp_path / "digests.json"
    with pytest.raises(UserMistake, match=rf"has changed: .*; then remove its entry from {known}"):
        await releases.program("v7.1.0", is_v0=False)
    known.unlink()
    [program, _] = await releases.program("v7.1.0", is_v0=False)
    assert (await asyncio.to_thread(Path(program).read_bytes)).endswith(b"# two\n")


async def test_a_version_comes_from_a_registry(registry: OciRegistry, tmp_path: Path) -> None:
    (tmp_path / "piped").write_bytes(b"#!/bin/sh\n# seven\n")
    reference = parse_reference(f"oci://{registry.host}/team/piped:v7")
    async with Registry.open(reference) as opened:
        files = [(Platform(*host_platform()), tmp_path / "piped")]
        await opened.push(files, layer_type=LAYER_TYPE, artifact_type="application/x")
    releases = open_releases(f"oci://{registry.host}/team/piped:{{version}}", tmp_path / "home")
    path, command = await releases.program("v7", is_v0=True)
    assert b"# seven" in await asyncio.to_thread(Path(path).read_bytes)
    assert command == "piped"
    with pytest.raises(PipecdError, match="piped v8"):
        await releases.program("v8", is_v0=True)


@pytest.mark.parametrize("source", ["pip:", "https://example.com/piped", "http://a/{version}"])
def test_an_invalid_release_source_is_rejected(source: str, tmp_path: Path) -> None:
    with pytest.raises(UserMistake, match="names no releases"):
        open_releases(source, tmp_path)
