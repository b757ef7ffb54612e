# SPDX-License-Identifier: Apache-2.0
"""Charts come from repositories and registries that the piped knows, with its passwords."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from pipecd.plugins.kubernetes.config import (
    ChartRegistry,
    ChartRepository,
    ChartSources,
    HelmChart,
    ManifestInput,
)
from pipecd.plugins.kubernetes.loader import ManifestLoader, RenderRequest
from pipecd.sdk import Source, UserMistake
from pipecd.sdk.host import plain_git_variables
from servers.registry import OciRegistry

PASSWORD = "s3cret-of-charts"
MANIFEST = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: '{{ .Chart.Version }}'}\n"


class NoInstaller:
    """A machine that has to have its programs."""

    async def tool(self, name: str, version: str, script: str) -> Path:
        raise AssertionError(f"{name} {version} was to be installed")


@dataclass
class Kitchen:
    """A directory of charts, and a Helm that notes how it was called."""

    directory: Path
    helm: str

    @property
    def calls(self) -> str:
        return (self.directory / "calls").read_text()

    def run(self, *arguments: str) -> None:
        subprocess.run([self.helm, *arguments], check=True, capture_output=True)

    def packed(self, version: str) -> Path:
        """Returns an archive of the chart `web` in a version."""
        place = self.directory / version / "web"
        (place / "templates").mkdir(parents=True)
        (place / "Chart.yaml").write_text(f"apiVersion: v2\nname: web\nversion: {version}\n")
        (place / "templates" / "one.yaml").write_text(MANIFEST)
        self.run("package", str(place), "--destination", str(self.directory / "packed"))
        return self.directory / "packed" / f"web-{version}.tgz"

    def publish(self, server: OciRegistry, version: str) -> None:
        """Puts a version of the chart into the repository at `/files` of a server."""
        archive = self.packed(version)
        self.run("repo", "index", str(archive.parent), "--url", f"{server.address}/files")
        for file in archive.parent.iterdir():
            server.files[file.name] = file.read_bytes()

    async def render(self, loader: ManifestLoader, repository: str, version: str) -> list[str]:
        chart = HelmChart(repository=repository, name="web", version=version)
        source = Source(self.directory, version, b"", "app.pipecd.yaml", self.directory)
        wanted = ManifestInput(helm_chart=chart)
        found = await loader.load(RenderRequest(source, wanted, "a", NoInstaller()))
        return [manifest.name for manifest in found]


@pytest.fixture
def kitchen(tmp_path: Path, helm: str, monkeypatch: pytest.MonkeyPatch) -> Kitchen:
    noting = tmp_path / "bin" / "helm"
    noting.parent.mkdir()
    noting.write_text(f'#!/bin/sh\necho "$@" >> "{tmp_path}/calls"\nexec "{helm}" "$@"\n')
    noting.chmod(0o755)
    monkeypatch.setenv("PATH", str(noting.parent), prepend=":")
    return Kitchen(tmp_path, helm)


def repositories(server: OciRegistry) -> ChartSources:
    known = ChartRepository(
        name="ours", address=f"{server.address}/files", username="cook", password=PASSWORD
    )
    return ChartSources(chart_repositories=(known,))


async def test_a_chart_comes_from_a_repository_and_newer_ones_are_found_later(
    kitchen: Kitchen, registry: OciRegistry, tmp_path: Path
) -> None:
    kitchen.publish(registry, "1.0.0")
    loader = ManifestLoader(repositories(registry), tmp_path / "kept", plain_git_variables)
    assert await kitchen.render(loader, "ours", "1.0.0") == ["1.0.0"]
    kitchen.publish(registry, "1.1.0")
    assert await kitchen.render(loader, "ours", "1.1.0") == ["1.1.0"]
    assert kitchen.calls.count("repo add") == 1
    assert PASSWORD not in kitchen.calls
    assert PASSWORD in (tmp_path / "kept/helm/config/repositories.yaml").read_text()


@pytest.mark.slow
async def test_a_chart_comes_from_a_registry_that_wants_a_login(
    kitchen: Kitchen,
    tls_registry: OciRegistry,
    certificate: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", certificate[0])
    kitchen.run("push", str(kitchen.packed("1.0.0")), f"oci://{tls_registry.host}/charts")
    tls_registry.wants_token, tls_registry.login = True, f"cook:{PASSWORD}"
    known = ChartRegistry(address=tls_registry.host, username="cook", password=PASSWORD)
    loader = ManifestLoader(
        ChartSources(chart_registries=(known,)), tmp_path / "kept", plain_git_variables
    )
    place = f"oci://{tls_registry.host}/charts"
    assert await kitchen.render(loader, place, "1.0.0") == ["1.0.0"]
    assert PASSWORD not in kitchen.calls
    wrong = known.model_copy(update={"password": "wrong"})
    loader = ManifestLoader(
        ChartSources(chart_registries=(wrong,)), tmp_path / "other", plain_git_variables
    )
    with pytest.raises(UserMistake, match="refused the login"):
        await kitchen.render(loader, place, "1.0.0")


async def test_a_repository_that_is_away_is_named_and_disturbs_nobody_else(
    kitchen: Kitchen, registry: OciRegistry, tmp_path: Path
) -> None:
    loader = ManifestLoader(repositories(registry), tmp_path / "kept", plain_git_variables)
    with pytest.raises(UserMistake, match=r"the chart repository ours at .*/files was not added"):
        await kitchen.render(loader, "ours", "1.0.0")
    kitchen.packed("2.0.0")
    local = ManifestInput(helm_chart=HelmChart(path="2.0.0/web"))
    source = Source(tmp_path, "c", b"", "app.pipecd.yaml", tmp_path)
    found = await loader.load(RenderRequest(source, local, "a", NoInstaller()))
    assert [manifest.name for manifest in found] == ["2.0.0"]
    kitchen.publish(registry, "1.0.0")
    assert await kitchen.render(loader, "ours", "1.0.0") == ["1.0.0"]
