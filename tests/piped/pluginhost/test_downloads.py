# SPDX-License-Identifier: Apache-2.0
"""Plugin programs are downloaded once, completely, and verified by their checksum."""

import asyncio
import hashlib
import ssl
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pipecd.config.piped import PluginSpec
from pipecd.model.errors import PipecdError, Unavailable, UserMistake
from pipecd.piped.pluginhost.host import PluginDownloads
from pipecd.wire import program_store as store_module
from pipecd.wire.oci import PLUGIN_LAYER, Platform, parse_reference
from pipecd.wire.program_store import host_platform
from pipecd.wire.registry import Registry
from servers.registry import OciRegistry

SCRIPT = b"#!/bin/sh\nexit 0\n"


def sum_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def spec(url: str, checksum: str = "") -> PluginSpec:
    return PluginSpec(name="tool", url=url, checksum=checksum)


@pytest.fixture(autouse=True)
def _short_retry_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "_RETRY_SECONDS", 0.01)


@pytest.fixture
def site(
    tls_registry: OciRegistry, certificate: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> OciRegistry:
    """A trusted server with one file."""
    monkeypatch.setenv("SSL_CERT_FILE", certificate[0])
    tls_registry.files["tool"] = SCRIPT
    return tls_registry


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "plugins"


def files_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.name != "digests.json")


async def test_a_download_is_executable_and_reused(site: OciRegistry, directory: Path) -> None:
    plugin = spec(f"{site.address}/files/tool")
    path = await PluginDownloads(directory).program(plugin)
    assert path.read_bytes() == SCRIPT
    assert path.stat().st_mode & 0o777 == 0o755
    assert path.name.startswith("tool-")
    assert await PluginDownloads(directory).program(plugin) == path
    assert len(site.requests) == 1


async def test_another_url_is_another_file(site: OciRegistry, directory: Path) -> None:
    site.files["v2"] = SCRIPT + b"# v2"
    first = await PluginDownloads(directory).program(spec(f"{site.address}/files/tool"))
    second = await PluginDownloads(directory).program(spec(f"{site.address}/files/v2"))
    assert first != second
    assert second.read_bytes().endswith(b"# v2")


async def test_redownload_fetches_the_program_again(site: OciRegistry, directory: Path) -> None:
    plugin = spec(f"{site.address}/files/tool")
    await PluginDownloads(directory).program(plugin)
    path = await PluginDownloads(directory, redownload=True).program(plugin)
    assert path.read_bytes() == SCRIPT
    assert len(site.requests) == 2


async def test_a_new_checksum_downloads_the_new_content(site: OciRegistry, directory: Path) -> None:
    url = f"{site.address}/files/tool"
    await PluginDownloads(directory).program(spec(url, sum_of(SCRIPT)))
    site.files["tool"] = newer = SCRIPT + b"# newer"
    path = await PluginDownloads(directory).program(spec(url, sum_of(newer)))
    assert path.read_bytes() == newer


async def test_a_wrong_checksum_leaves_nothing_behind(site: OciRegistry, directory: Path) -> None:
    plugin = spec(f"{site.address}/files/tool", sum_of(b"another"))
    with pytest.raises(
        UserMistake, match=r"plugin tool: the checksum of .* is sha256:\w+ and should"
    ):
        await PluginDownloads(directory).program(plugin)
    assert files_in(directory) == []


async def test_a_short_outage_is_retried_and_a_long_one_is_an_error(
    site: OciRegistry, directory: Path
) -> None:
    site.outages = 2
    plugin = spec(f"{site.address}/files/tool?token=secret")
    assert await PluginDownloads(directory).program(plugin)
    site.outages = 3
    with pytest.raises(Unavailable, match=r"plugin tool cannot be downloaded from \S+/files/tool: the server answered 503"):  # fmt: skip
        await PluginDownloads(directory, redownload=True).program(plugin)
    assert len(files_in(directory)) == 1


@asynccontextmanager
async def cutting_server(
    certificate: tuple[str, str], head: bytes, *, cuts: int
) -> AsyncGenerator[str]:
    """The URL of a program whose first downloads are cut in the middle."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)
    left = cuts

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal left
        await reader.readuntil(b"\r\n\r\n")
        is_cut, left = left > 0, left - 1
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n" + head + b"\r\n")
        writer.write(SCRIPT[:-4] if is_cut else SCRIPT)
        await writer.drain()
        if is_cut:
            writer.transport.abort()
        else:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    async with server:
        yield f"https://localhost:{server.sockets[0].getsockname()[1]}/tool"


LENGTH = b"Content-Length: %d\r\n" % len(SCRIPT)


@pytest.mark.usefixtures("site")
async def test_a_download_that_is_cut_is_repeated_and_then_an_error(
    certificate: tuple[str, str], directory: Path
) -> None:
    async with cutting_server(certificate, LENGTH, cuts=2) as url:
        assert (await PluginDownloads(directory).program(spec(url))).read_bytes() == SCRIPT
    async with cutting_server(certificate, LENGTH, cuts=3) as url:
        with pytest.raises(Unavailable, match=r"cannot be downloaded from \S+/tool: peer closed connection .*received 13 bytes, expected 17"):  # fmt: skip
            await PluginDownloads(directory).program(spec(url))
    assert len(files_in(directory)) == 1


@pytest.mark.usefixtures("site")
async def test_a_program_of_unknown_length_needs_a_checksum(
    certificate: tuple[str, str], directory: Path
) -> None:
    """The connection may have been cut in the middle, which nobody could tell."""
    async with cutting_server(certificate, b"", cuts=1) as url:
        with pytest.raises(UserMistake, match=r"does not say how long \S+/tool is"):
            await PluginDownloads(directory).program(spec(url))
        assert files_in(directory) == []
        plugin = spec(url, sum_of(SCRIPT))
        assert (await PluginDownloads(directory).program(plugin)).read_bytes() == SCRIPT


@pytest.mark.parametrize(
    ("content", "error"),
    [
        pytest.param(b"\x1f\x8b archive", "is an archive and not a program", id="an archive"),
        pytest.param(b"<!DOCTYPE html>", "is a web page and not a program", id="a web page"),
        pytest.param(b"hello", "is neither a program nor a script", id="a text"),
        pytest.param(b"\x7fELF" + bytes(14) + struct.pack("<H", 2), "is a program for another machine than linux/", id="a program for another machine"),
    ],
)  # fmt: skip
async def test_a_file_that_is_no_program_is_an_error(
    site: OciRegistry, directory: Path, content: bytes, error: str
) -> None:
    site.files["tool"] = content
    plugin = spec(f"{site.address}/files/tool")
    with pytest.raises(UserMistake, match=rf"plugin tool: the content of \S+/files/tool {error}"):
        await PluginDownloads(directory).program(plugin)
    # It is not what the next download is compared with.
    assert files_in(directory) == []
    site.files["tool"] = SCRIPT
    assert (await PluginDownloads(directory).program(plugin)).read_bytes() == SCRIPT


async def test_an_untrusted_certificate_names_the_variable_that_trusts_it(
    site: OciRegistry, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(Unavailable, match=r"CERTIFICATE_VERIFY_FAILED.*name the file of its authority in SSL_CERT_FILE"):  # fmt: skip
        await PluginDownloads(directory).program(spec(f"{site.address}/files/tool"))


async def test_a_missing_file_or_an_unsafe_redirect_is_an_error(
    site: OciRegistry, registry: OciRegistry, directory: Path
) -> None:
    with pytest.raises(UserMistake, match=r"/files/other answered 404; correct plugins\[\]\.url"):
        await PluginDownloads(directory).program(spec(f"{site.address}/files/other"))
    registry.files["tool"] = SCRIPT
    site.redirects["/files/moved"] = f"{registry.address}/files/tool"
    with pytest.raises(UserMistake, match=r"redirects to a URL without TLS"):
        await PluginDownloads(directory).program(spec(f"{site.address}/files/moved"))


async def test_a_local_program_is_used_in_place(tmp_path: Path) -> None:
    path = tmp_path / "my tool"
    path.write_bytes(SCRIPT)
    path.chmod(0o755)
    unused = PluginDownloads(tmp_path / "plugins")
    assert await unused.program(spec(path.as_uri(), sum_of(SCRIPT))) == path
    with pytest.raises(UserMistake, match=r"the checksum of .* and should be"):
        await unused.program(spec(path.as_uri(), sum_of(b"")))
    path.chmod(0o644)
    with pytest.raises(UserMistake, match=r"is not executable; run chmod \+x"):
        await unused.program(spec(path.as_uri()))
    with pytest.raises(UserMistake, match=r"there is no file /nowhere/tool"):
        await unused.program(spec("file:///nowhere/tool"))


async def push(registry: OciRegistry, path: Path, tag: str = "v1") -> str:
    reference = parse_reference(f"oci://{registry.host}/team/plugin:{tag}")
    async with Registry.open(reference) as opened:
        files = [(Platform(*host_platform()), path)]
        return await opened.push(files, layer_type=PLUGIN_LAYER, artifact_type="application/x")


async def test_a_program_is_pulled_from_an_oci_registry(
    registry: OciRegistry, directory: Path, tmp_path: Path
) -> None:
    (tmp_path / "tool").write_bytes(SCRIPT)
    digest = await push(registry, tmp_path / "tool")
    plugin = spec(f"oci://{registry.host}/team/plugin:v1", sum_of(SCRIPT))
    path = await PluginDownloads(directory).program(plugin)
    assert path.read_bytes() == SCRIPT
    (tmp_path / "tool").write_bytes(SCRIPT + b"# newer")
    await push(registry, tmp_path / "tool")
    by_digest = spec(f"oci://{registry.host}/team/plugin:v1@{digest}")
    assert (await PluginDownloads(directory).program(by_digest)).read_bytes() == SCRIPT


@pytest.mark.parametrize(
    ("url", "error"),
    [
        pytest.param("team/plugin:v2", "plugin tool: the registry has no .*team/plugin:v2", id="a tag that is not there"),
        pytest.param("Team/plugin", "plugin tool: .* is not a valid OCI reference", id="a name that cannot be"),
    ],
)  # fmt: skip
async def test_an_artifact_that_the_registry_does_not_have(
    registry: OciRegistry, directory: Path, url: str, error: str
) -> None:
    with pytest.raises(PipecdError, match=error):
        await PluginDownloads(directory).program(spec(f"oci://{registry.host}/{url}"))
    assert files_in(directory) == []


def test_the_media_type_is_that_of_upstream() -> None:
    assert PLUGIN_LAYER == "application/vnd.pipecd.piped.plugin"
