# SPDX-License-Identifier: Apache-2.0
"""A control plane that is away for long is told of once, and missed by nobody when it is back."""

from typing import Any

import grpc
from structlog.testing import capture_logs

from pipecd.model.deployment import SyncStrategy
from pipecd.piped.mirror.applications import ApplicationMirror
from pipecd.piped.mirror.commands import CommandMirror
from pipecd.piped.mirror.deployments import DeploymentMirror
from pipecd.piped.mirror.pace import Pace
from pipecd.piped.mirror.presence import Presence
from pipecd.proto.service.piped_pb2 import ReportPipedMetaRequest

OFTEN = 0.005
WHAT = {"commands", "deployments", "applications", "statistics"}


def told(logs: list[Any], event: str) -> set[str]:
    return {entry["what"] for entry in logs if entry["event"] == event}


async def test_an_outage_is_told_once_and_its_end_too(
    open_plane: Any, origin: Any, running: Any, eventually: Any
) -> None:
    async with open_plane() as plane, plane.api() as api:
        await plane.add_repository("site", origin.remote)
        id_ = await plane.add_application("cart")
        applications = ApplicationMirror(api, every=OFTEN)
        deployments = DeploymentMirror(api, every=OFTEN)
        commands = CommandMirror(api, every=OFTEN)
        presence = Presence(
            api=api,
            meta=ReportPipedMetaRequest(),
            metrics=lambda: b"",
            pace=Pace(OFTEN, net=(OFTEN, OFTEN)),
        )
        parts = (applications, deployments, commands, presence)
        with capture_logs() as logs:
            async with running(*parts):
                await applications.read()
                plane.gate.refusals["*"] = grpc.StatusCode.UNAVAILABLE
                # So often would it be asked in five minutes.
                before = plane.gate.count("ListUnhandledCommands")
                await eventually(lambda: plane.gate.count("ListUnhandledCommands") > before + 60)
                assert len(applications.all) == 1
                command = await plane.cases.applications.sync(
                    id_, SyncStrategy.AUTO, by=plane.admin
                )
                plane.gate.refusals.clear()
                await eventually(lambda: [c.id for c in commands.all] == [command])
                # The others come back in their own time.
                await eventually(lambda: told(logs, "control plane answers again") >= WHAT)
        away = [e["what"] for e in logs if e["event"].startswith("control plane did not answer")]
        assert len(away) == len(set(away))
        assert set(away) == told(logs, "control plane answers again") == WHAT
