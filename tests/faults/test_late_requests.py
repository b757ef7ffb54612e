# SPDX-License-Identifier: Apache-2.0
"""Late, repeated and reordered requests of a piped change nothing."""

import random
from pathlib import Path

import pytest

from faults.installation import FaultyInstallation, open_installation
from pipecd.proto.service import api_pb2 as pb

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

# Reads, the metrics of a piped, and requests for the lease, which have tests of their own.
HARMLESS = frozenset({
    "ReportStat", "ListApplications", "ListDeploymentsInOrder", "ListUnhandledCommands",
    "ListEventsInOrder", "GetDeployment", "GetApplicationMostRecentDeployment", "GetDesiredVersion",
    "AcquirePipedLease",
})  # fmt: skip


async def documents(installed: FaultyInstallation) -> list[str]:
    """The deployments and the application as text, without the times of their last change."""
    listed = await installed.deployments()
    async with installed.api() as api:
        ids = installed.applications.values()
        applications = [
            (await api.GetApplication(pb.GetApplicationRequest(application_id=id))).application
            for id in ids
        ]
    for document in (*listed, *applications):
        document.updated_at = 0
    return sorted(str(document) for document in (*listed, *applications))


@pytest.mark.parametrize("is_stopped", [False, True], ids=["piped runs", "piped has ended"])
async def test_requests_of_completed_deployments_change_nothing_when_they_arrive_again(
    tmp_path: Path, is_stopped: bool
) -> None:
    async with open_installation(tmp_path) as installed:
        installed.calls.recording = {"*"}
        head = installed.push("cart")
        piped = await installed.start_piped()
        await installed.eventually(lambda: installed.completed(head))
        head = installed.push("cart")
        await installed.eventually(lambda: installed.completed(head))
        await installed.eventually(lambda: installed.is_idle("cart"))
        if is_stopped:
            await piped.stop()
        before = await documents(installed)
        installed.calls.recording.clear()
        recorded = [call for call in installed.calls.recorded if call.name not in HARMLESS]
        assert {"CreateDeploymentInOrder", "ReportDeploymentPlanned", "ReportStageStatusChanged", "ReportDeploymentCompleted"} <= {call.name for call in recorded}  # fmt: skip
        random.Random(7).shuffle(recorded)
        for call in recorded:
            await installed.calls.send(call)
            after = await documents(installed)
            assert after == before, f"a repeated {call.name} changed a document"


async def test_a_late_request_creates_no_deployment_of_an_older_commit(tmp_path: Path) -> None:
    async with open_installation(tmp_path) as installed:
        initial = installed.push("cart")
        piped = await installed.start_piped()
        await installed.eventually(lambda: installed.completed(initial))
        installed.calls.holding = {"CreateDeploymentInOrder"}
        older = installed.push("cart")
        await installed.eventually(
            lambda: installed.value_is(lambda: bool(installed.calls.held), True)
        )
        await piped.kill()
        installed.calls.holding.clear()
        head = installed.push("cart")
        await piped.start()
        await installed.eventually(lambda: installed.completed(head))
        await installed.calls.release()
        assert await installed.deployment_of(older) is None
        assert installed.runs()[-1].commit == head
