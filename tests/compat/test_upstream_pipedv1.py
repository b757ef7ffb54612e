# SPDX-License-Identifier: Apache-2.0
"""Upstream's piped for plugins and upstream's plugins, with our control plane and with our piped."""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.wire.server import TlsFiles
from servers.our_installation import OpenInstallation
from servers.programs import OUR_PIPED
from servers.prometheus import Prometheus

# Without upstream no server is started either.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.usefixtures("upstream")]


# A script may print empty lines, which the control plane does not accept as they are.
APP = """\
apiVersion: pipecd.dev/v1beta1
kind: Application
spec:
  name: cart
  labels: {kind: SCRIPT}
  planner: {alwaysUsePipeline: true}
  pipeline:
    stages:
      - name: WAIT
        with: {duration: 1s}
      - name: SCRIPT_RUN
        with:
          env: {WHAT: hello}
          run: |
            echo "$WHAT from $(basename "$PWD")"
            echo
            echo done
      - name: WAIT_APPROVAL
        with: {approvers: [admin]}
"""

FAILING = """\
apiVersion: pipecd.dev/v1beta1
kind: Application
spec:
  name: cart
  planner: {alwaysUsePipeline: true}
  pipeline:
    stages:
      - name: SCRIPT_RUN
        with:
          run: echo forwards
          onRollback: echo backwards
      - name: SCRIPT_RUN
        with:
          run: exit 3
"""


ANALYSIS = """\
apiVersion: pipecd.dev/v1beta1
kind: Application
spec:
  name: cart
  planner: {alwaysUsePipeline: true}
  pipeline:
    stages:
      - name: ANALYSIS
        with:
          duration: 3s
          metrics:
            - {provider: numbers, query: "errors{app='cart'}", expected: {max: 1}, interval: 1s}
"""

PLUGINS = ("wait", "scriptrun", "waitapproval")


@dataclass(frozen=True)
class Sides:
    """A piped, and a directory with its plugins as programs."""

    piped: Path
    plugins: Path

    def entries(self, free_port: Callable[[], int], names: Sequence[str], config: str = "") -> str:
        """The plugins in the file of the piped."""
        lines = "".join(
            f"    - {{name: {name}, url: 'file://{self.plugins / name}', port: {free_port()}{config}}}\n"
            for name in names
        )
        return f"  plugins:\n{lines}"


@pytest.fixture(
    params=[
        pytest.param(("theirs", "theirs"), id="upstream's plugins under upstream's piped"),
        pytest.param(("ours", "theirs"), id="upstream's plugins under our piped"),
        pytest.param(("theirs", "ours"), id="our plugins under upstream's piped"),
    ]
)
def sides(request: pytest.FixtureRequest, tmp_path: Path) -> Sides:
    piped, plugins = request.param
    return Sides(
        piped=OUR_PIPED if piped == "ours" else request.getfixturevalue("upstream_pipedv1"),
        plugins=our_plugins(tmp_path / "plugins")
        if plugins == "ours"
        else request.getfixturevalue("upstream_plugins"),
    )


def our_plugins(directory: Path) -> Path:
    """Our plugins as programs of one file, as upstream's piped wants them."""
    directory.mkdir()
    for name in (*PLUGINS, "analysis"):
        program = directory / name
        program.write_text(
            f"#!{sys.executable}\n"
            f"from pipecd.plugins.{name}.plugin import PLUGIN\n"
            "from pipecd.sdk import serve\n"
            "serve(PLUGIN)\n"
        )
        program.chmod(0o755)
    return directory


def outcome(deployment: Deployment) -> list[tuple[str, StageStatus]]:
    return [(stage.name, StageStatus(stage.status)) for stage in deployment.stages]


async def test_a_pipeline_goes_through_and_rolls_back(
    open_installation: OpenInstallation, free_port: Callable[[], int], sides: Sides
) -> None:
    async with open_installation(all_answered=True) as installation:
        first = installation.origin.commit({"cart/app.pipecd.yaml": APP})
        agent = await installation.register_piped("v1", sides.entries(free_port, PLUGINS))
        id_ = await installation.add_application(
            "cart", Application(name="cart", piped_id=agent.id)
        )
        ports = (f"--admin-port={free_port()}", f"--plugin-service-port={free_port()}")
        flags = (f"--config-file={agent.config}", "--insecure=true", *ports)
        async with installation.running(sides.piped, "run", *flags) as piped:
            known = await installation.eventually(lambda: installation.introduced(agent.id), piped)
            assert tuple(p.name for p in known.plugins) == PLUGINS
            waiting = await installation.eventually(
                lambda: installation.stage(first, "WAIT_APPROVAL"), piped
            )
            await installation.cases.deployments.approve(*waiting, by=installation.admin)
            done = await installation.eventually(lambda: installation.ended(first), piped)
            assert DeploymentStatus(done.status) is DeploymentStatus.SUCCESS, done.status_reason
            logs = await installation.logs(done)
            assert "hello from cart" in logs["SCRIPT_RUN"]
            assert "done" in logs["SCRIPT_RUN"]
            assert logs["WAIT"]
            assert "admin" in logs["WAIT_APPROVAL"]
            application = await installation.stores.applications.get(id_)
            assert dict(application.labels) == {"kind": "SCRIPT"}

            second = installation.origin.commit({"cart/app.pipecd.yaml": FAILING})
            done = await installation.eventually(lambda: installation.ended(second), piped)
            assert DeploymentStatus(done.status) is DeploymentStatus.FAILURE
            assert outcome(done)[:2] == [
                ("SCRIPT_RUN", StageStatus.SUCCESS),
                ("SCRIPT_RUN", StageStatus.FAILURE),
            ]
            assert "backwards" in (await installation.logs(done))["SCRIPT_RUN_ROLLBACK"]


async def test_an_analysis_of_metrics_decides(
    open_installation: OpenInstallation,
    free_port: Callable[[], int],
    sides: Sides,
    prometheus: Prometheus,
) -> None:
    if not (sides.plugins / "analysis").exists():
        pytest.skip("upstream's plugin analysis is not there")
    now = int(time.time())
    prometheus.write("errors", {"app": "cart"}, [(now + i, 0.5) for i in range(-60, 120, 5)])
    provider = f"{{name: numbers, type: PROMETHEUS, config: {{address: '{prometheus.url}'}}}}"
    config = f", config: {{analysisProviders: [{provider}]}}"
    async with open_installation(all_answered=True) as installation:
        good = installation.origin.commit({"cart/app.pipecd.yaml": ANALYSIS})
        agent = await installation.register_piped(
            "v1", sides.entries(free_port, ["analysis"], config)
        )
        await installation.add_application("cart", Application(name="cart", piped_id=agent.id))
        ports = (f"--admin-port={free_port()}", f"--plugin-service-port={free_port()}")
        flags = (f"--config-file={agent.config}", "--insecure=true", *ports)
        async with installation.running(sides.piped, "run", *flags) as piped:
            done = await installation.eventually(lambda: installation.ended(good), piped)
            assert DeploymentStatus(done.status) is DeploymentStatus.SUCCESS, piped.text
            limit = ANALYSIS.replace("max: 1", "max: 0.1")
            bad = installation.origin.commit({"cart/app.pipecd.yaml": limit})
            done = await installation.eventually(lambda: installation.ended(bad), piped)
            assert DeploymentStatus(done.status) is DeploymentStatus.FAILURE
            assert outcome(done)[0] == ("ANALYSIS", StageStatus.FAILURE)


async def test_tls_and_a_disabled_piped(
    open_installation: OpenInstallation,
    free_port: Callable[[], int],
    certificate: tuple[str, str],
    upstream_pipedv1: Path,
) -> None:
    async with open_installation(tls=TlsFiles(*certificate)) as installation:
        agent = await installation.register_piped("v1")
        ports = (f"--admin-port={free_port()}", f"--plugin-service-port={free_port()}")
        flags = (f"--config-file={agent.config}", f"--cert-file={certificate[0]}", *ports)
        async with installation.running(upstream_pipedv1, "run", *flags) as piped:
            await installation.eventually(lambda: installation.introduced(agent.id), piped)

            async def says(words: str) -> bool:
                return words in piped.text

            # A piped that is refused while it starts ends.
            await installation.eventually(lambda: says("valid unregistered applications"), piped)
            await installation.cases.pipeds.disable(agent.id, by=installation.admin)
            refused = "code = Unauthenticated desc = Unauthenticated"
            await installation.eventually(lambda: says(refused), piped)
