# SPDX-License-Identifier: Apache-2.0
"""Upstream's piped for plugins and upstream's plugins, with our control plane and with our piped."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.wire.server import TlsFiles

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

OUR_PIPED = Path(sys.executable).parent / "piped"

# A script may print empty lines, which the control plane must not be told as they are.
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


PLUGINS = ("wait", "scriptrun", "waitapproval")


def plugins_of(directory: Path, free_port: Callable[[], int]) -> str:
    entries = "".join(
        f"    - {{name: {name}, url: 'file://{directory / name}', port: {free_port()}}}\n"
        for name in PLUGINS
    )
    return f"  plugins:\n{entries}"


def outcome(deployment: Deployment) -> list[tuple[str, StageStatus]]:
    return [(stage.name, StageStatus(stage.status)) for stage in deployment.stages]


@pytest.fixture(params=["their piped", "our piped"])
def piped_program(request: pytest.FixtureRequest) -> Path:
    """Each piped in turn; both with the plugins of upstream."""
    if request.param == "our piped":
        return OUR_PIPED
    program: Path = request.getfixturevalue("upstream_pipedv1")
    return program


async def test_a_pipeline_of_upstreams_plugins_goes_through_and_rolls_back(
    open_bed: Any, free_port: Callable[[], int], piped_program: Path, upstream_plugins: Path
) -> None:
    async with open_bed(all_answered=True) as bed:
        first = bed.origin.commit({"cart/app.pipecd.yaml": APP})
        agent = await bed.enrol("v1", plugins_of(upstream_plugins, free_port))
        id_ = await bed.add_application("cart", Application(name="cart", piped_id=agent.id))
        ports = (f"--admin-port={free_port()}", f"--plugin-service-port={free_port()}")
        flags = (f"--config-file={agent.config}", "--insecure=true", *ports)
        async with bed.running(piped_program, "run", *flags) as piped:
            known = await bed.eventually(lambda: bed.introduced(agent.id), piped)
            assert tuple(p.name for p in known.plugins) == PLUGINS
            waiting = await bed.eventually(lambda: bed.stage(first, "WAIT_APPROVAL"), piped)
            await bed.cases.deployments.approve(*waiting, by=bed.admin)
            done = await bed.eventually(lambda: bed.ended(first), piped)
            assert DeploymentStatus(done.status) is DeploymentStatus.SUCCESS, done.status_reason
            logs = await bed.logs(done)
            assert "hello from cart" in logs["SCRIPT_RUN"]
            assert "done" in logs["SCRIPT_RUN"]
            assert logs["WAIT"]
            assert "admin" in logs["WAIT_APPROVAL"]
            application = await bed.stores.applications.get(id_)
            assert dict(application.labels) == {"kind": "SCRIPT"}

            second = bed.origin.commit({"cart/app.pipecd.yaml": FAILING})
            done = await bed.eventually(lambda: bed.ended(second), piped)
            assert DeploymentStatus(done.status) is DeploymentStatus.FAILURE
            assert outcome(done)[:2] == [
                ("SCRIPT_RUN", StageStatus.SUCCESS),
                ("SCRIPT_RUN", StageStatus.FAILURE),
            ]
            assert "backwards" in (await bed.logs(done))["SCRIPT_RUN_ROLLBACK"]


async def test_tls_and_a_disabled_piped(
    open_bed: Any,
    free_port: Callable[[], int],
    certificate: tuple[str, str],
    upstream_pipedv1: Path,
    upstream_plugins: Path,
) -> None:
    async with open_bed(tls=TlsFiles(*certificate)) as bed:
        agent = await bed.enrol("v1", plugins_of(upstream_plugins, free_port))
        ports = (f"--admin-port={free_port()}", f"--plugin-service-port={free_port()}")
        flags = (f"--config-file={agent.config}", f"--cert-file={certificate[0]}", *ports)
        async with bed.running(upstream_pipedv1, "run", *flags) as piped:
            await bed.eventually(lambda: bed.introduced(agent.id), piped)
            await bed.cases.pipeds.disable(agent.id, by=bed.admin)

            async def is_refused() -> bool:
                return "code = Unauthenticated desc = Unauthenticated" in piped.text

            await bed.eventually(is_refused, piped)
