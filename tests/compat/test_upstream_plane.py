# SPDX-License-Identifier: Apache-2.0
"""Our piped with a control plane of upstream, and our control plane on a database of upstream."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message

from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.proto.model.apikey_pb2 import APIKey
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.service import web_pb2
from servers.programs import OUR_PIPED
from servers.upstream import UpstreamInstallation

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

PLUGINS = "  plugins: [{name: wait}, {name: scriptrun}, {name: waitapproval}]\n"

APP = """\
apiVersion: pipecd.dev/v1beta1
kind: Application
spec:
  name: cart
  labels: {env: dev}
  planner: {alwaysUsePipeline: true}
  pipeline:
    stages:
      - name: WAIT
        with: {duration: 1s}
      - name: SCRIPT_RUN
        with: {run: "echo hello from $(basename $PWD)"}
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
        with: {run: echo forwards, onRollback: echo backwards}
      - name: SCRIPT_RUN
        with: {run: exit 3}
"""


# Upstream's control plane crashes on requests for a list without options.
LISTS: tuple[tuple[str, Message], ...] = (
    ("ListPipeds", web_pb2.ListPipedsRequest(options=web_pb2.ListPipedsRequest.Options())),
    (
        "ListApplications",
        web_pb2.ListApplicationsRequest(options=web_pb2.ListApplicationsRequest.Options()),
    ),
    (
        "ListDeployments",
        web_pb2.ListDeploymentsRequest(
            options=web_pb2.ListDeploymentsRequest.Options(), page_size=10
        ),
    ),
    ("ListAPIKeys", web_pb2.ListAPIKeysRequest(options=web_pb2.ListAPIKeysRequest.Options())),
    (
        "ListEvents",
        web_pb2.ListEventsRequest(options=web_pb2.ListEventsRequest.Options(), page_size=10),
    ),
)

COMMANDS = (
    "application list",
    "application list --disabled",
    "application list --limit 1",
    "application get --app-id {application}",
    "deployment list",
    "deployment list --limit 1",
    "deployment list --status DEPLOYMENT_FAILURE",
    "deployment logs --deployment-id {deployment}",
)


def without_cursor(text: str) -> str:
    """The output of pipectl; upstream returns a cursor after the last page, too."""
    return re.sub(r',?"cursor":"[^"]*"', "", text)


def by_id(rpc: str, answer: Any) -> dict[str, Any]:
    """The listed objects by their ids; without an order upstream lists them as it stores them."""
    objects = {
        one.id: one
        for one in getattr(answer, rpc.removeprefix("List").lower().replace("apikeys", "keys"))
    }
    if rpc == "ListAPIKeys":
        for key in objects.values():
            # Upstream shows the hash of a key that was never used.
            key.key_hash = "redacted"
    return objects


async def deployed_twice(
    installation: UpstreamInstallation, free_port: Callable[[], int]
) -> tuple[Deployment, Deployment]:
    """A deployment of our piped that went through, and one that was rolled back."""
    first = installation.origin.commit({"cart/app.pipecd.yaml": APP, "idle/app.pipecd.yaml": APP})
    agent = await installation.register_piped("ours", PLUGINS)
    flags = (f"--config-file={agent.config}", "--insecure=true", f"--admin-port={free_port()}")
    async with installation.running(OUR_PIPED, "run", *flags) as piped:
        known = await installation.eventually(lambda: installation.introduced(agent.id), piped)
        assert [p.name for p in known.plugins] == ["wait", "scriptrun", "waitapproval"]
        await installation.add_application("cart", Application(name="cart", piped_id=agent.id))
        waiting = await installation.eventually(
            lambda: installation.stage(first, "WAIT_APPROVAL"), piped
        )
        await installation.approve(*waiting)
        good = await installation.eventually(lambda: installation.ended(first), piped)
        second = installation.origin.commit({"cart/app.pipecd.yaml": FAILING})
        bad = await installation.eventually(lambda: installation.ended(second), piped)
        assert "the control plane has no wake-up stream, polling instead" in piped.text
        return good, bad


async def test_our_piped_works_for_a_control_plane_of_upstream(
    upstream_installation: UpstreamInstallation, free_port: Callable[[], int]
) -> None:
    good, bad = await deployed_twice(upstream_installation, free_port)
    assert DeploymentStatus(good.status) is DeploymentStatus.SUCCESS, good.status_reason
    assert "hello from cart" in (await upstream_installation.logs(good))["SCRIPT_RUN"]
    assert DeploymentStatus(bad.status) is DeploymentStatus.FAILURE
    statuses = [StageStatus(stage.status) for stage in bad.stages]
    assert statuses[:2] == [StageStatus.SUCCESS, StageStatus.FAILURE]
    assert "backwards" in (await upstream_installation.logs(bad))["SCRIPT_RUN_ROLLBACK"]


async def test_a_database_of_upstream_shows_the_same_lists_in_ours_and_back(
    upstream_installation: UpstreamInstallation,
    free_port: Callable[[], int],
    upstream_pipectl: Path,
) -> None:
    # The pipeds of upstream cannot fill it: its control plane answers with a cursor to those that
    # ask for open deployments, and on MySQL refuses to go on from it.
    installation = upstream_installation
    done, failed = await deployed_twice(installation, free_port)
    draft = Application(name="idle", piped_id=done.piped_id, labels={"env": "dev"})
    idle = await installation.add_application("idle", draft)
    disable = web_pb2.DisableApplicationRequest(application_id=idle)
    await installation.admin.call("DisableApplication", disable)
    theirs = (
        "--address",
        installation.api_address,
        "--insecure",
        "--api-key",
        await installation.api_key(),
    )
    event = ["event", "register", "--name", "image", "--data", "v2", "--labels", "app=cart"]
    assert (await installation.run(upstream_pipectl, *event, *theirs)).code == 0

    async with installation.ours_on_the_same_stores() as (admin, address):
        for rpc, request in LISTS:
            expected, answer = [await one.call(rpc, request) for one in (installation.admin, admin)]
            if rpc in {"ListDeployments", "ListEvents"}:
                expected.ClearField("cursor")
            assert expected.ByteSize(), rpc
            assert answer == expected, rpc
        for deployment in (done, failed):
            for stage in deployment.stages:
                log = web_pb2.GetStageLogRequest(deployment_id=deployment.id, stage_id=stage.id)
                answers = [
                    await one.call("GetStageLog", log) for one in (admin, installation.admin)
                ]
                assert answers[0] == answers[1]
        ours = ("--address", address, *theirs[2:])
        for command in COMMANDS:
            line = command.format(application=done.application_id, deployment=done.id).split()
            expected = await installation.run(upstream_pipectl, *line, *theirs)
            assert expected.code == 0, expected
            answer = await installation.run(upstream_pipectl, *line, *ours)
            assert without_cursor(answer.out) == without_cursor(expected.out), command

        # The way back: what ours writes is what upstream reads afterwards.
        await admin.call("EnableApplication", web_pb2.EnableApplicationRequest(application_id=idle))
        key = web_pb2.GenerateAPIKeyRequest(name="from-ours", role=APIKey.READ_ONLY)
        await admin.call("GenerateAPIKey", key)
        await admin.call("RegisterPiped", web_pb2.RegisterPipedRequest(name="new", desc="by ours"))
        event[event.index("v2")] = "v3"
        assert (await installation.run(upstream_pipectl, *event, *ours)).code == 0
        written = {rpc: await admin.call(rpc, request) for rpc, request in LISTS}
    for rpc, request in LISTS:
        answer = await installation.admin.call(rpc, request)
        assert by_id(rpc, answer) == by_id(rpc, written[rpc]), rpc
