# SPDX-License-Identifier: Apache-2.0
"""Remote value files come by https from public addresses, or from hosts that the operator names."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipecd.config.rendering import RenderingSpec
from pipecd.plugins.kubernetes.config import HelmChart, HelmOptions, ManifestInput
from pipecd.plugins.kubernetes.helm import value_inputs
from servers.rendering import CHART, HostileBranch, Renderer, config_map
from servers.web import Answer, Request, WebServer

REDIRECTS = {
    "/to-itself": "/values.yaml",
    "/to-another-host": "http://localhost:{port}/values.yaml",
    "/for-ever": "/for-ever",
}


class ValueServer(WebServer):
    """Serves a value file and redirects."""

    def answer(self, request: Request) -> Answer:
        if target := REDIRECTS.get(request.path):
            return Answer(302, headers={"Location": target.format(port=self.port)})
        if request.path == "/values.yaml":
            return Answer(body=b"shown: of-the-network")
        return Answer(404)


@pytest.fixture
def server() -> Iterator[ValueServer]:
    server = ValueServer()
    yield server
    server.close()


@pytest.fixture
def renderer(tmp_path: Path, helm: str, monkeypatch: pytest.MonkeyPatch) -> Renderer:
    monkeypatch.setenv("PATH", str(Path(helm).parent), prepend=":")
    return Renderer(tmp_path)


def with_value_file(url: str) -> HostileBranch:
    """Returns a branch with a chart that shows a value of a remote file."""
    return HostileBranch(
        {
            "chart/Chart.yaml": CHART,
            "chart/templates/one.yaml": config_map("a", "{{ .Values.shown }}"),
        },
        input=ManifestInput(
            helm_chart=HelmChart(path="chart"), helm_options=HelmOptions(value_files=(url,))
        ),
    )


@pytest.mark.parametrize("path", ["/values.yaml", "/to-itself"])
async def test_a_value_file_of_an_allowed_host_is_downloaded(
    renderer: Renderer, server: ValueServer, path: str
) -> None:
    allowed = RenderingSpec(value_file_hosts=("127.0.0.1",))
    branch = with_value_file(f"http://127.0.0.1:{server.port}{path}")
    assert "of-the-network" in await renderer.output(branch, rendering=allowed)


@pytest.mark.parametrize(
    ("path", "hosts", "message"),
    [
        pytest.param("/values.yaml", (), "not read by https", id="a host that is not allowed"),
        pytest.param(
            "/to-another-host", ("127.0.0.1",), "not read by https", id="a redirect to another host"
        ),
        pytest.param("/for-ever", ("127.0.0.1",), "too many redirects", id="a loop of redirects"),
        pytest.param("/nothing", ("127.0.0.1",), "404", id="no such file"),
    ],
)
async def test_other_value_files_are_refused(
    renderer: Renderer, server: ValueServer, path: str, hosts: tuple[str, ...], message: str
) -> None:
    branch = with_value_file(f"http://127.0.0.1:{server.port}{path}")
    output = await renderer.output(branch, rendering=RenderingSpec(value_file_hosts=hosts))
    assert message in output
    assert "of-the-network" not in output


def test_a_remote_value_file_is_rendered_again_later(tmp_path: Path) -> None:
    remote = HelmOptions(value_files=("https://example.com/values.yaml",))
    assert value_inputs(tmp_path, remote).depends_on_network
    assert not value_inputs(tmp_path, HelmOptions(value_files=("a.yaml",))).depends_on_network


async def test_https_does_not_make_a_private_address_public(renderer: Renderer) -> None:
    output = await renderer.output(with_value_file("https://127.0.0.1:1/values.yaml"))
    assert "does not resolve to a public address" in output
