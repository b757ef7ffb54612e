# SPDX-License-Identifier: Apache-2.0
"""Charts of the chart repositories and registries of the piped, with its passwords."""

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
from plugins.kubernetes.testbed import NoInstaller
from servers.registry import OciRegistry

PASSWORD = "s3cret-of-charts"
MANIFEST = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: '{{ .Chart.Version }}'}\n"


@dataclass
class ChartBench:
    """A directory of charts, and a Helm that records its calls."""

    directory: Path
    helm: str

    @property
    def calls(self) -> str:
        return (self.directory / "calls").read_text()

    def run(self, *arguments: str) -> None:
        subprocess.run([self.helm, *arguments], check=True, capture_output=True)

    def packed(self, version: str) -> Path:
        """Returns an archive of the chart `web` in a version."""
        directory = self.directory / version / "web"
        (directory / "templates").mkdir(parents=True)
        (directory / "Chart.yaml").write_text(f"apiVersion: v2\nname: web\nversion: {version}\n")
        (directory / "templates" / "one.yaml").write_text(MANIFEST)
        self.run("package", str(directory), "--destination", str(self.directory / "packed"))
        return self.directory / "packed" / f"web-{version}.tgz"

    def publish(self, server: OciRegistry, version: str) -> None:
        """Publishes a version of the chart in the repository at `/files` of a server."""
        archive = self.packed(version)
        self.run("repo", "index", str(archive.parent), "--url", f"{server.address}/files")
        for file in archive.parent.iterdir():
            server.files[file.name] = file.read_bytes()

    async def render(self, loader: ManifestLoader, repository: str, version: str) -> list[str]:
        chart = HelmChart(repository=repository, name="web", version=version)
        source = Source(self.directory, version, b"", "app.pipecd.yaml", self.directory)
        input_ = ManifestInput(helm_chart=chart)
        manifests = await loader.load(RenderRequest(source, input_, "a", NoInstaller()))
        return [manifest.name for manifest in manifests]


@pytest.fixture
def bench(tmp_path: Path, helm: str, monkeypatch: pytest.MonkeyPatch) -> ChartBench:
    recording = tmp_path / "bin" / "helm"
    recording.parent.mkdir()
    recording.write_text(f'#!/bin/sh\necho "$@" >> "{tmp_path}/calls"\nexec "{helm}" "$@"\n')
    recording.chmod(0o755)
    monkeypatch.setenv("PATH", str(recording.parent), prepend=":")
    return ChartBench(tmp_path, helm)


def repositories(server: OciRegistry) -> ChartSources:
    configured = ChartRepository(
        name="ours", address=f"{server.address}/files", username="charts-user", password=PASSWORD
    )
    return ChartSources(chart_repositories=(configured,))


async def test_a_chart_repository_is_updated_when_a_newer_chart_is_requested(
    bench: ChartBench, registry: OciRegistry, tmp_path: Path
) -> None:
    bench.publish(registry, "1.0.0")
    loader = ManifestLoader(repositories(registry), tmp_path / "state", plain_git_variables)
    assert await bench.render(loader, "ours", "1.0.0") == ["1.0.0"]
    bench.publish(registry, "1.1.0")
    assert await bench.render(loader, "ours", "1.1.0") == ["1.1.0"]
    assert bench.calls.count("repo add") == 1
    assert PASSWORD not in bench.calls
    assert PASSWORD in (tmp_path / "state/helm/config/repositories.yaml").read_text()


@pytest.mark.slow
async def test_a_chart_comes_from_a_registry_with_credentials(
    bench: ChartBench,
    tls_registry: OciRegistry,
    certificate: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", certificate[0])
    bench.run("push", str(bench.packed("1.0.0")), f"oci://{tls_registry.host}/charts")
    tls_registry.wants_token, tls_registry.login = True, f"charts-user:{PASSWORD}"
    configured = ChartRegistry(address=tls_registry.host, username="charts-user", password=PASSWORD)
    loader = ManifestLoader(
        ChartSources(chart_registries=(configured,)), tmp_path / "state", plain_git_variables
    )
    url = f"oci://{tls_registry.host}/charts"
    assert await bench.render(loader, url, "1.0.0") == ["1.0.0"]
    assert PASSWORD not in bench.calls
    wrong = configured.model_copy(update={"password": "wrong"})
    loader = ManifestLoader(
        ChartSources(chart_registries=(wrong,)), tmp_path / "other", plain_git_variables
    )
    with pytest.raises(UserMistake, match="refused the login"):
        await bench.render(loader, url, "1.0.0")


async def test_an_unreachable_chart_repository_does_not_affect_other_applications(
    bench: ChartBench, registry: OciRegistry, tmp_path: Path
) -> None:
    loader = ManifestLoader(repositories(registry), tmp_path / "state", plain_git_variables)
    with pytest.raises(UserMistake, match=r"the chart repository ours at .*/files was not added"):
        await bench.render(loader, "ours", "1.0.0")
    bench.packed("2.0.0")
    local = ManifestInput(helm_chart=HelmChart(path="2.0.0/web"))
    source = Source(tmp_path, "c", b"", "app.pipecd.yaml", tmp_path)
    manifests = await loader.load(RenderRequest(source, local, "a", NoInstaller()))
    assert [manifest.name for manifest in manifests] == ["2.0.0"]
    bench.publish(registry, "1.0.0")
    assert await bench.render(loader, "ours", "1.0.0") == ["1.0.0"]
