# SPDX-License-Identifier: Apache-2.0
"""Archives and artifacts that a lying publisher sends touch nothing but the program itself."""

import gzip
import hashlib
import io
import json
import stat
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pipecd.config.piped import PluginSpec
from pipecd.launcher.release import open_releases
from pipecd.model.errors import PipecdError
from pipecd.piped.pluginhost.host import PluginDownloads
from pipecd.piped.pluginhost.tool_registry import Tool, ToolRegistry
from pipecd.plugins.kubernetes import tools as tools_module
from pipecd.plugins.kubernetes.tools import ToolDownload
from pipecd.wire import program_store
from pipecd.wire.oci import MANIFEST, PLUGIN_LAYER, digest_of
from servers.registry import OciRegistry

PROGRAM = b"#!/bin/sh\necho helm\n"
MEMBER = "linux-amd64/helm"


def member(name: str = MEMBER, **attributes: object) -> tarfile.TarInfo:
    information = tarfile.TarInfo(name)
    information.mode = 0o755
    for key, value in attributes.items():
        setattr(information, key, value)
    return information


def archive(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w:gz") as tar:
        for information, content in members:
            if information.isreg():
                information.size = len(content)
            tar.addfile(information, io.BytesIO(content))
    return written.getvalue()


@dataclass
class Site:
    """A publisher of an archive with its checksum, and the machine that installs it."""

    server: OciRegistry
    directory: Path
    secret: Path = field(init=False)

    def __post_init__(self) -> None:
        self.secret = self.directory / "host" / "secret"
        self.secret.parent.mkdir()
        self.secret.write_text("host-secret\n")
        self.secret.chmod(0o600)

    async def install(self, content: bytes) -> Path:
        self.server.files["helm.tar.gz"] = content
        sums = f"{hashlib.sha256(content).hexdigest()}  helm.tar.gz\n"
        self.server.files["helm.tar.gz.sha256sum"] = sums.encode()
        download = ToolDownload(
            version="3.1.0",
            url=f"{self.server.address}/files/helm.tar.gz",
            checksums=f"{self.server.address}/files/helm.tar.gz.sha256sum",
            member=MEMBER,
        )
        tools = ToolRegistry(self.directory / "tools")
        return await tools.install(Tool("helm", "3.1.0", download.script()))

    def check_untouched(self) -> None:
        assert self.secret.read_text() == "host-secret\n"
        assert stat.S_IMODE(self.secret.stat().st_mode) == 0o600
        assert [path.name for path in self.secret.parent.iterdir()] == ["secret"]
        installed = self.directory / "tools"
        for path in installed.rglob("*") if installed.exists() else ():
            status = path.lstat()
            assert stat.S_ISREG(status.st_mode), f"{path.name} is no regular file"
            assert status.st_mode & (stat.S_ISUID | stat.S_ISGID) == 0
            assert "host-secret" not in path.read_text(errors="replace")


@pytest.fixture
def site(
    tls_registry: OciRegistry,
    certificate: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Site:
    for name in ("SSL_CERT_FILE", "CURL_CA_BUNDLE"):
        monkeypatch.setenv(name, certificate[0])
    monkeypatch.setattr(program_store, "_RETRY_SECONDS", 0.01)
    return Site(tls_registry, tmp_path)


Pack = Callable[[Site], bytes]

ATTACKS: dict[str, Pack] = {
    "a symbolic link to a file of the host": lambda site: archive(
        (member(type=tarfile.SYMTYPE, linkname=str(site.secret)), b"")
    ),
    "a relative link out of the directory": lambda site: archive(
        (member(type=tarfile.SYMTYPE, linkname=f"../../../{site.secret.parent.name}/secret"), b"")
    ),
    "a hard link to a file of the host": lambda site: archive(
        (member(type=tarfile.LNKTYPE, linkname=str(site.secret)), b"")
    ),
    "a hard link upwards": lambda site: archive(
        (member(type=tarfile.LNKTYPE, linkname=f"../../{site.secret.parent.name}/secret"), b"")
    ),
    "a link, and a program that is written through it": lambda site: archive(
        (member(type=tarfile.SYMTYPE, linkname=str(site.secret)), b""), (member(), PROGRAM)
    ),
    "a link as directory of the program": lambda site: archive(
        (member("linux-amd64", type=tarfile.SYMTYPE, linkname=str(site.secret.parent)), b""),
        (member(), PROGRAM),
    ),
    "a file at an absolute path": lambda site: archive(
        (member(f"{site.secret.parent}/planted"), PROGRAM), (member(), PROGRAM)
    ),
    "a file above the directory": lambda site: archive(
        (member(f"../../{site.secret.parent.name}/planted"), PROGRAM), (member(), PROGRAM)
    ),
    "a program with the permission to become its owner": lambda _: archive(
        (member(mode=0o6755), PROGRAM)
    ),
    "a device": lambda _: archive(
        (member(type=tarfile.CHRTYPE, devmajor=1, devminor=5), b""),
    ),
    "a pipe, on which a reader waits": lambda _: archive((member(type=tarfile.FIFOTYPE), b"")),
    "a directory": lambda _: archive((member(type=tarfile.DIRTYPE), b"")),
    "an empty program": lambda _: archive((member(), b"")),
    "no program": lambda _: archive((member("linux-amd64/LICENSE"), b"text")),
    "an option of tar as a name": lambda _: archive(
        (member("--checkpoint-action=exec=sh"), PROGRAM), (member(), PROGRAM)
    ),
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
async def test_an_archive_installs_at_most_the_program(attack: Pack, site: Site) -> None:
    try:
        path = await site.install(attack(site))
    except PipecdError:
        pass
    else:
        assert path.read_bytes() == PROGRAM
        assert stat.S_IMODE(path.lstat().st_mode) == 0o755
    site.check_untouched()


async def test_a_plain_archive_installs_its_program(site: Site) -> None:
    content = archive((member("linux-amd64/README"), b"text"), (member(), PROGRAM))
    assert (await site.install(content)).read_bytes() == PROGRAM
    site.check_untouched()


async def test_an_archive_that_grows_is_cut_off(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tools_module, "_SIZE_LIMIT", 1 << 20)
    path = await site.install(archive((member(), bytes(32 << 20))))
    assert path.stat().st_size == 1 << 20


async def pull(site: Site, manifest: bytes, *, blobs: dict[str, bytes] | None = None) -> Path:
    site.server.manifests[("team/tool", "v1")] = (MANIFEST, manifest)
    site.server.blobs.update(blobs or {})
    url = f"oci://{site.server.host}/team/tool:v1"
    return await PluginDownloads(site.directory / "plugins").program(
        PluginSpec(name="../../tool", url=url)
    )


def layers(*sizes: object, media_type: str = PLUGIN_LAYER) -> bytes:
    entry = {"mediaType": media_type, "digest": digest_of(PROGRAM)}
    return json.dumps({"layers": [{**entry, "size": size} for size in sizes]}).encode()


ATTACKS_OF_REGISTRIES: dict[str, bytes] = {
    "a layer of a terabyte": layers(1 << 40),
    "many layers": layers(*[1 << 30] * 5),
    "a size that is no number": layers("9" * 5000),
    "a layer without content": layers(0),
    "a negative size": layers(-1),
    "a manifest as deep as the stack": b'{"layers": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "a manifest that is no object": b"[]",
    "an index of itself": json.dumps({"manifests": [{"digest": "v1"}]}).encode(),
    "a manifest of five megabytes": b" " * (5 << 20) + layers(len(PROGRAM)),
    "a digest that is a path": json.dumps(
        {"layers": [{"mediaType": PLUGIN_LAYER, "digest": "../../../etc/passwd", "size": 9}]}
    ).encode(),
}


@pytest.mark.parametrize("attack", ATTACKS_OF_REGISTRIES.values(), ids=ATTACKS_OF_REGISTRIES)
async def test_an_artifact_of_a_lying_registry_is_refused(attack: bytes, site: Site) -> None:
    with pytest.raises(PipecdError):
        await pull(site, attack, blobs={digest_of(PROGRAM): PROGRAM * 2})
    left = [p for p in (site.directory / "plugins").glob("*") if p.name != "digests.json"]
    assert left == []
    assert not any("etc/passwd" in request for request in site.server.requests)


async def test_an_artifact_is_stored_in_the_directory_of_plugins(site: Site) -> None:
    path = await pull(site, layers(len(PROGRAM)), blobs={digest_of(PROGRAM): PROGRAM})
    assert path.parent == site.directory / "plugins"
    assert path.read_bytes() == PROGRAM


async def test_a_checksum_file_without_end_is_not_read_to_its_end(site: Site) -> None:
    site.server.files["v1"] = PROGRAM
    site.server.files["v1.sha256"] = b"0" * (64 << 20)
    source = f"{site.server.address}/files/{{version}}"
    with pytest.raises(PipecdError, match="is not a SHA-256 checksum"):
        await open_releases(source, site.directory / "home").program("v1", is_v0=False)


@pytest.mark.parametrize("version", ["../../x", "/etc/x", "..", "x/../../y", "$(id)", "-rf"])
async def test_a_version_is_no_path(version: str, site: Site) -> None:
    source = f"{site.server.address}/files/{{version}}"
    with pytest.raises(PipecdError, match="cannot be a version"):
        await open_releases(source, site.directory / "home").program(version, is_v0=False)
    with pytest.raises(PipecdError, match="cannot be the name or version"):
        await ToolRegistry(site.directory).install(Tool("helm", version, "exit 1"))


async def test_a_compressed_program_is_refused(site: Site) -> None:
    site.server.files["tool"] = gzip.compress(bytes(32 << 20))
    downloads = PluginDownloads(site.directory / "plugins")
    with pytest.raises(PipecdError, match="is an archive and not a program"):
        await downloads.program(PluginSpec(name="x", url=f"{site.server.address}/files/tool"))
