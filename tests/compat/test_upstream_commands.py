# SPDX-License-Identifier: Apache-2.0
"""Upstream's pipeds handle every command and events of our control plane."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pipecd.model.command import CommandStatus
from pipecd.model.deployment import DeploymentStatus
from pipecd.proto.model import common_pb2 as common
from pipecd.proto.model import event_pb2
from pipecd.proto.model.application_pb2 import Application
from servers.installation import Program
from servers.our_installation import OpenInstallation, OurInstallation

# The event store of upstream's piped polls once a minute, and has no wake-ups.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

WATCHER = """\
  eventWatcher:
    - matcher: {name: image, labels: {env: dev}}
      handler:
        type: GIT_UPDATE
        config:
          replacements: [{file: values.yaml, yamlField: $.image}]
"""


GROUND = 'resource "terraform_data" "ground" { input = "one" }\n'


def app_file(kind: str, seconds: int) -> str:
    # The plugin generation does not know the key and ignores it.
    return f"""\
apiVersion: pipecd.dev/v1beta1
kind: {kind}
spec:
  name: cart
  input: {{terraformVersion: given}}
  labels: {{env: dev}}
  planner: {{alwaysUsePipeline: true}}
  pipeline:
    stages:
      - name: WAIT
        with: {{duration: {seconds}s}}
{WATCHER}"""


@dataclass(frozen=True)
class Generation:
    """A piped of upstream: its program, its flags and the application it deploys."""

    program: Path
    arguments: tuple[str, ...]
    kind: str
    application: Application
    spec: str


@pytest.fixture(params=["the first generation", "the plugin generation"])
def generation(request: pytest.FixtureRequest, free_port: Callable[[], int]) -> Generation:
    often = "  eventWatcher: {checkInterval: 5s}\n"
    if request.param == "the first generation":
        tools: Path = request.getfixturevalue("tools_dir")
        return Generation(
            request.getfixturevalue("upstream_piped"),
            ("piped", f"--tools-dir={tools}"),
            "TerraformApp",
            Application(name="cart", kind=common.TERRAFORM, platform_provider="tf"),
            often + "  platformProviders: [{name: tf, type: TERRAFORM}]\n",
        )
    wait = request.getfixturevalue("upstream_plugins") / "wait"
    plugin = f"  plugins: [{{name: wait, url: 'file://{wait}', port: {free_port()}}}]\n"
    return Generation(
        request.getfixturevalue("upstream_pipedv1"),
        ("run", f"--plugin-service-port={free_port()}"),
        "Application",
        Application(name="cart"),
        often + plugin,
    )


Typed = Callable[..., Awaitable[Any]]


@pytest.fixture
def typed(upstream_pipectl: Path) -> Typed:
    """Types a line to upstream's pipectl, which must succeed."""

    async def run(installation: OurInstallation, line: str) -> Any:
        ended = await installation.run(
            upstream_pipectl, *line.split(), *installation.pipectl_flags()
        )
        assert ended.code == 0, ended.out + ended.err
        return ended

    return run


async def test_commands_and_events_reach_an_upstream_piped(
    open_installation: OpenInstallation,
    free_port: Callable[[], int],
    generation: Generation,
    typed: Typed,
) -> None:
    kind, application = generation.kind, generation.application
    async with open_installation(all_answered=True) as installation:
        files = {"cart/app.pipecd.yaml": app_file(kind, 1), "cart/main.tf": GROUND}
        first = installation.origin.commit({**files, "cart/values.yaml": "image: v1\n"})
        agent = await installation.register_piped("piped", generation.spec)
        application.piped_id = agent.id
        id_ = await installation.add_application("cart", application)
        flags = (f"--config-file={agent.config}", "--insecure", f"--admin-port={free_port()}")
        async with installation.running(generation.program, *generation.arguments, *flags) as piped:
            done = await installation.eventually(lambda: installation.ended(first), piped)
            assert DeploymentStatus(done.status) is DeploymentStatus.SUCCESS, done.status_reason

            synced = await typed(
                installation,
                f"application sync --app-id {id_} --check-interval 2s --timeout 2m"
                " --wait-status DEPLOYMENT_SUCCESS,DEPLOYMENT_FAILURE",
            )
            assert "Deployment is at DEPLOYMENT_SUCCESS status" in synced.err

            await an_event_is_acted_on(installation, piped, typed)
            await a_plan_is_previewed(installation, id_, typed)

            long = installation.origin.commit({"cart/app.pipecd.yaml": app_file(kind, 600)})
            deployment_id, _ = await installation.eventually(
                lambda: installation.stage(long, "WAIT"), piped
            )
            await installation.cases.deployments.cancel(
                deployment_id, False, True, by=installation.admin
            )
            done = await installation.eventually(lambda: installation.ended(long), piped)
            assert DeploymentStatus(done.status) is DeploymentStatus.CANCELLED
            await installation.eventually(lambda: installation.is_online(agent.id), piped)

            command = await installation.cases.pipeds.restart(agent.id, by=installation.admin)
            async with asyncio.timeout(120):
                await piped.process.wait()
            answered = await installation.cases.commands.get(command, by=installation.admin)
            assert CommandStatus(answered.status) is CommandStatus.SUCCEEDED


async def an_event_is_acted_on(installation: OurInstallation, piped: Program, typed: Typed) -> None:
    registered = await typed(
        installation,
        "event register --name image --data v2 --labels env=dev --commit-hash c0ffee"
        " --commit-url https://example.com/c0ffee --commit-title image",
    )
    event_id = json.loads(registered.err.split("\t", 1)[1])["id"]

    async def handled() -> Any:
        event = await installation.stores.events.get(event_id)
        return event if event.status != event_pb2.EVENT_NOT_HANDLED else None

    event = await installation.eventually(handled, piped)
    assert event.status == event_pb2.EVENT_SUCCESS, event.status_description
    assert installation.origin.git("show", "HEAD:cart/values.yaml") == "image: v2"


async def a_plan_is_previewed(
    installation: OurInstallation, application_id: str, typed: Typed
) -> None:
    branch, head = installation.origin.branch({"cart/values.yaml": "image: v3\n"})
    out = installation.directory / "preview.json"
    await typed(
        installation,
        f"plan-preview --repo-remote-url {installation.origin.remote} --base-branch main"
        f" --head-branch {branch} --head-commit {head} --out {out} --timeout 2m",
    )
    preview = json.loads(out.read_text())
    assert preview["FailurePipeds"] is None
    both = [*(preview["Applications"] or ()), *(preview["FailureApplications"] or ())]
    assert [a["ApplicationID"] for a in both] == [application_id]
