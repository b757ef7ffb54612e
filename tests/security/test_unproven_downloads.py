# SPDX-License-Identifier: Apache-2.0
"""A download without proof does not change unnoticed, and is refused where proof is required."""

import hashlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from pipecd.config.piped import PluginSpec
from pipecd.git.credentials import GitCredentials, git_environment
from pipecd.launcher.release import open_releases
from pipecd.model.errors import PipecdError, UserMistake
from pipecd.observe.version import build_version
from pipecd.piped.pluginhost.host import PluginDownloads
from pipecd.piped.pluginhost.tool_registry import Tool, ToolRegistry
from pipecd.plugins.kubernetes.config import ChartRepository, HelmChart
from pipecd.plugins.kubernetes.helm import GitChartCache
from pipecd.plugins.kubernetes.tools import DOWNLOADS, ToolDownload
from pipecd.wire import program_store
from pipecd.wire.oci import PLUGIN_LAYER, Platform, parse_reference
from pipecd.wire.program_store import host_platform
from pipecd.wire.registry import Registry
from servers.git_ssh import GitSsh, new_key
from servers.origin import Origin
from servers.registry import OciRegistry

GOOD, EVIL = b"#!/bin/sh\necho good\n", b"#!/bin/sh\necho evil\n"


@dataclass
class Scene:
    """A site with programs, and the directories of a piped and a launcher that use it."""

    site: OciRegistry
    directory: Path
    digests: Path = field(init=False)

    def __post_init__(self) -> None:
        self.digests = self.directory / "work" / "digests.json"

    async def plugin(self, url: str, *, checksum: str = "", **settings: bool) -> Path:
        """Starts piped, as far as a plugin is concerned."""
        downloads = PluginDownloads(self.directory / "plugins", digests=self.digests, **settings)
        return await downloads.program(PluginSpec(name="tool", url=url, checksum=checksum))

    async def tool(self, script: str) -> Path:
        return await ToolRegistry(self.directory / "tools", digests=self.digests).install(
            Tool("helm", "3.1.0", script)
        )

    async def release(self, source: str, version: str) -> Path:
        """Starts the launcher with a desired version, and returns the program that it runs."""
        path, *_ = await open_releases(source, self.directory / "home").program(
            version, is_v0=False
        )
        return Path(path)

    @property
    def url(self) -> str:
        return f"{self.site.address}/files/tool"

    async def push(self, content: bytes, tag: str) -> str:
        """Pushes a plugin to the registry of the site, and returns its reference."""
        program = self.directory / "pushed"
        program.write_bytes(content)
        reference = f"oci://{self.site.host}/team/tool:{tag}"
        async with Registry.open(parse_reference(reference)) as opened:
            files = [(Platform(*host_platform()), program)]
            digest = await opened.push(files, layer_type=PLUGIN_LAYER, artifact_type="x/y")
        return f"{reference}@{digest}"


@pytest.fixture
def scene(
    tls_registry: OciRegistry,
    certificate: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Scene:
    monkeypatch.setenv("SSL_CERT_FILE", certificate[0])
    monkeypatch.setenv("CURL_CA_BUNDLE", certificate[0])
    monkeypatch.setattr(program_store, "_RETRY_SECONDS", 0.01)
    tls_registry.files["tool"] = GOOD
    return Scene(tls_registry, tmp_path)


async def redownload(scene: Scene) -> Path:
    await scene.plugin(scene.url)
    scene.site.files["tool"] = EVIL
    return await scene.plugin(scene.url, redownload=True)


async def after_the_cache_is_lost(scene: Scene) -> Path:
    path = await scene.plugin(scene.url)
    path.unlink()
    scene.site.files["tool"] = EVIL
    return await scene.plugin(scene.url)


async def with_a_token_in_the_url(scene: Scene) -> Path:
    url = f"{scene.url}?token=s3cret"
    await scene.plugin(url)
    assert "s3cret" not in scene.digests.read_text()
    scene.site.files["tool"] = EVIL
    return await scene.plugin(url, redownload=True)


async def by_a_redirect(scene: Scene) -> Path:
    await scene.plugin(scene.url)
    scene.site.files["evil"] = EVIL
    scene.site.redirects["/files/tool"] = f"{scene.site.address}/files/evil"
    return await scene.plugin(scene.url, redownload=True)


async def by_a_moved_tag(scene: Scene) -> Path:
    await scene.push(GOOD, "v1")
    url = f"oci://{scene.site.host}/team/tool:v1"
    await scene.plugin(url)
    await scene.push(EVIL, "v1")
    return await scene.plugin(url, redownload=True)


async def in_the_cache(scene: Scene) -> Path:
    """The download is the old one; what replaced it in the cache must not run."""
    path = await scene.plugin(scene.url)
    path.write_bytes(EVIL)
    return await scene.plugin(scene.url)


async def with_forgotten_digests(scene: Scene) -> Path:
    await scene.plugin(scene.url)
    scene.digests.write_text("{")
    scene.site.files["tool"] = EVIL
    return await scene.plugin(scene.url, redownload=True)


async def by_a_checksum_of_another_file(scene: Scene) -> Path:
    scene.site.files["tool"] = EVIL
    return await scene.plugin(scene.url, checksum=f"sha256:{hashlib.sha256(GOOD).hexdigest()}")


async def first_use_with_a_requirement(scene: Scene) -> Path:
    scene.site.files["tool"] = EVIL
    return await scene.plugin(scene.url, require_checksum=True)


async def cached_with_a_requirement(scene: Scene) -> Path:
    scene.site.files["tool"] = EVIL
    await scene.plugin(scene.url)
    return await scene.plugin(scene.url, require_checksum=True)


async def tag_with_a_requirement(scene: Scene) -> Path:
    await scene.push(EVIL, "v1")
    return await scene.plugin(f"oci://{scene.site.host}/team/tool:v1", require_checksum=True)


async def tool_of_a_script(scene: Scene) -> Path:
    script = f'curl -fsS -o "{{{{ .OutPath }}}}" {scene.url}'
    (await scene.tool(script)).unlink()
    scene.site.files["tool"] = EVIL
    return await scene.tool(script)


async def release_without_a_source(scene: Scene) -> Path:
    return await scene.release("", "v9.9.9")


async def release_that_changed(scene: Scene) -> Path:
    source = f"{scene.site.address}/files/{{version}}"
    scene.site.files["v1"] = GOOD
    (await scene.release(source, "v1")).unlink()
    scene.site.files["v1"] = EVIL
    return await scene.release(source, "v1")


async def release_that_changed_with_its_checksum(scene: Scene) -> Path:
    source = f"{scene.site.address}/files/{{version}}"
    for content in (GOOD, EVIL):
        scene.site.files["v1"] = content
        scene.site.files["v1.sha256"] = hashlib.sha256(content).hexdigest().encode()
        path = await scene.release(source, "v1")
        if content is GOOD:
            path.unlink()
    return path


async def tool_whose_checksum_is_of_another_file(scene: Scene) -> Path:
    """Today's sums name many files; that of another one proves nothing."""
    scene.site.files["kustomize_v1_linux.bin"] = EVIL
    other = hashlib.sha256(EVIL).hexdigest()
    scene.site.files["sums.txt"] = f"{other}  another_file\n".encode()
    download = ToolDownload(
        version="3.1.0",
        url=f"{scene.site.address}/files/kustomize_v1_linux.bin",
        checksums=f"{scene.site.address}/files/sums.txt",
    )
    return await scene.tool(download.script())


ATTACKS: dict[str, Callable[[Scene], Awaitable[Path]]] = {
    "a plugin changes at its address": redownload,
    "a plugin changes after the cache is lost": after_the_cache_is_lost,
    "a plugin changes behind a URL with a token": with_a_token_in_the_url,
    "a plugin changes by a redirect": by_a_redirect,
    "a plugin changes by a moved tag": by_a_moved_tag,
    "a plugin changes while its digests are damaged": with_forgotten_digests,
    "a plugin does not match its checksum": by_a_checksum_of_another_file,
    "a first download where a checksum is required": first_use_with_a_requirement,
    "an earlier download where a checksum is required": cached_with_a_requirement,
    "a tag where a checksum is required": tag_with_a_requirement,
    "a tool changes when it is installed again": tool_of_a_script,
    "a tool has the checksum of another file": tool_whose_checksum_is_of_another_file,
    "a release of piped without a source": release_without_a_source,
    "a release of piped changes": release_that_changed,
    "a release of piped changes with its published checksum": release_that_changed_with_its_checksum,
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
async def test_another_program_does_not_run(
    attack: Callable[[Scene], Awaitable[Path]], scene: Scene
) -> None:
    ran = b""
    with pytest.raises(PipecdError) as refused:
        ran = (await attack(scene)).read_bytes()
    assert ran != EVIL
    assert "s3cret" not in str(refused.value)
    kept = [path for path in scene.directory.rglob("*") if path.is_file() and path.name != "pushed"]
    if attack is not cached_with_a_requirement:
        assert not any(path.read_bytes() == EVIL for path in kept), "what was refused is removed"


async def test_a_changed_file_in_the_cache_is_downloaded_again(scene: Scene) -> None:
    assert (await in_the_cache(scene)).read_bytes() == GOOD


async def test_a_plugin_without_a_checksum_runs_with_a_warning(scene: Scene) -> None:
    with capture_logs() as logs:
        assert (await scene.plugin(scene.url)).read_bytes() == GOOD
    (warning,) = [line for line in logs if line["log_level"] == "warning"]
    assert warning["event"] == "program has no checksum, only a change of its content is refused"
    assert warning["remedy"] == "set plugins[].checksum"
    assert (await scene.plugin(scene.url, redownload=True)).read_bytes() == GOOD
    assert scene.digests.stat().st_mode & 0o077 == 0


async def test_a_new_checksum_accepts_the_change(scene: Scene) -> None:
    await scene.plugin(scene.url)
    scene.site.files["tool"] = newer = GOOD + b"# newer\n"
    checksum = f"sha256:{hashlib.sha256(newer).hexdigest()}"
    settings = {"redownload": True, "require_checksum": True}
    path = await scene.plugin(scene.url, checksum=checksum, **settings)
    assert path.read_bytes() == newer
    assert [entry["digest"] for entry in json.loads(scene.digests.read_text()).values()] == [
        checksum
    ]
    # It is now the one to be compared with.
    assert (await scene.plugin(scene.url, redownload=True)).read_bytes() == newer


async def test_the_digest_of_a_reference_is_a_checksum(scene: Scene) -> None:
    url = await scene.push(GOOD, "v1")
    assert (await scene.plugin(url, require_checksum=True)).read_bytes() == GOOD


async def test_the_launcher_runs_its_own_version_without_a_source(tmp_path: Path) -> None:
    releases = open_releases("", tmp_path)
    assert await releases.program(build_version(), is_v0=False)
    with pytest.raises(UserMistake, match=r"v9 is desired.* set --piped-release"):
        await releases.program("v9", is_v0=False)


async def test_a_tool_comes_from_the_mirror_first(scene: Scene) -> None:
    scene.site.files["mirror/helm/3.1.0/helm.bin"] = GOOD
    sums = hashlib.sha256(GOOD).hexdigest()
    scene.site.files["mirror/helm/3.1.0/helm.bin.sha256"] = f"{sums}  helm.bin\n".encode()
    download = ToolDownload(
        version="3.1.0",
        url=f"{scene.site.address}/elsewhere/helm.bin",
        checksums=f"{scene.site.address}/elsewhere/helm.bin.sha256",
    )
    tools = ToolRegistry(scene.directory, mirror=f"{scene.site.address}/files/mirror")
    path = await tools.install(Tool("helm", "3.1.0", download.script()))
    assert path.read_bytes() == GOOD
    assert not any("elsewhere" in request for request in scene.site.requests)


def test_every_tool_of_ours_has_published_checksums() -> None:
    for download in DOWNLOADS.values():
        assert download.url.startswith("https://")
        assert download.checksums.startswith("https://")


@asynccontextmanager
async def cloned_chart(
    git_ssh: GitSsh, origin: Origin, directory: Path, *, key: Path
) -> AsyncGenerator[Path]:
    """A chart of a Git repository by SSH, with a key of its own."""
    remote = git_ssh.url(origin.path)
    repository = ChartRepository(type="GIT", git_remote=remote, ssh_key_file=str(key))
    with git_environment(GitCredentials(), directory=directory / "git") as git:
        charts = GitChartCache([repository], directory / "charts", git.variables)
        async with charts.checkout(HelmChart(git_remote=remote, path="chart")) as chart:
            yield chart.directory


async def test_a_chart_of_a_host_with_another_key_is_refused(
    git_ssh: GitSsh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    origin = Origin.begin(tmp_path / "origin")
    origin.commit({"chart/Chart.yaml": "name: web\n"})
    async with cloned_chart(git_ssh, origin, tmp_path, key=git_ssh.key) as path:
        assert (path / "Chart.yaml").read_text() == "name: web\n"
    new_key(tmp_path / "other")
    with pytest.raises(PipecdError, match="Permission denied"):
        async with cloned_chart(git_ssh, origin, tmp_path, key=tmp_path / "other"):
            pass
    git_ssh.change_host_key()
    git_ssh.stop()
    git_ssh.start()
    with pytest.raises(PipecdError, match=r"[Hh]ost key verification failed"):
        async with cloned_chart(git_ssh, origin, tmp_path, key=git_ssh.key):
            pass
