# SPDX-License-Identifier: Apache-2.0
"""A whole piped logs once that an application file is invalid, and once that it is valid again."""

from typing import Any

import pytest
from structlog.testing import capture_logs

from pipecd.controlplane.datastore.applications import ApplicationFilter
from pipecd.controlplane.datastore.deployments import DeploymentFilter
from pipecd.model.application import SyncStatus
from pipecd.model.deployment import DeploymentStatus
from servers.control_plane import RunPiped, StartControlPlane
from servers.origin import Origin
from servers.polling import eventually
from servers.samples import WAITING_CART

FILE = "cart/app.pipecd.yaml"
INVALID = "application configuration is invalid"
VALID = "application configuration is valid again"


def is_logged(entry: Any) -> bool:
    """Whether the entry is about the file and above the level debug."""
    return entry["log_level"] != "debug" and (FILE in str(entry) or entry["event"] == VALID)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "error_text"),
    [
        pytest.param(
            {FILE: WAITING_CART + "  timeout: soon\n"}, "spec.timeout", id="a broken file"
        ),
        pytest.param({FILE: None, "cart/x": ""}, "was not found in Git", id="a missing file"),
    ],
)
async def test_an_invalid_application_file_is_logged_once_and_its_fix_is_logged_once(
    start_plane: StartControlPlane,
    whole_piped: RunPiped,
    origin: Origin,
    wrong: Any,
    error_text: str,
) -> None:
    async def deployed(plane: Any, commit: str) -> bool:
        every = DeploymentFilter(project="demo")
        listed = await plane.cases.deployments.list(every, by=plane.admin)
        return any(
            each.trigger.commit.hash == commit
            and DeploymentStatus(each.status) is DeploymentStatus.SUCCESS
            for each in listed.items
        )

    async def is_invalid(plane: Any) -> bool:
        every = ApplicationFilter(project="demo")
        listed = await plane.cases.applications.list(every, by=plane.admin)
        return [each.sync_state.status for each in listed.items] == [SyncStatus.INVALID_CONFIG]

    right = origin.commit({FILE: WAITING_CART})
    with capture_logs() as logs:
        async with start_plane() as plane, whole_piped(plane, origin.remote) as piped:
            await piped.add_application("cart")
            await eventually(lambda: deployed(plane, right), 20)
            origin.commit(wrong)
            await eventually(lambda: is_invalid(plane), 20)
            unknown = "live state cannot be read"
            await eventually(lambda: any(entry["event"] == unknown for entry in logs), 20)
            origin.commit({"elsewhere": ""})
            fixed = origin.commit({FILE: WAITING_CART, "cart/y": ""})
            await eventually(lambda: deployed(plane, fixed), 20)
            logged = [entry for entry in logs if is_logged(entry)]
    assert [entry["event"] for entry in logged] == [INVALID, VALID]
    assert error_text in logged[0]["error"]
    assert logged[0]["application"] == logged[1]["application"]
