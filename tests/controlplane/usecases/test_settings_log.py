# SPDX-License-Identifier: Apache-2.0
"""The log of the control plane says who changed which setting."""

from typing import Any

from structlog.testing import capture_logs

from pipecd.controlplane.auth.rbac_policy import parse_policies
from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.projects import StaticAdmin
from pipecd.proto.model.apikey_pb2 import APIKey

PASSWORD = "a much better password"


def changes(logs: Any) -> list[tuple[str, Any]]:
    assert all(entry["by"] for entry in logs)
    return [(entry["event"], entry.get("settings")) for entry in logs]


async def test_who_changed_a_setting_is_logged_without_its_value(
    cases: UseCases, admin: User, static_admin: StaticAdmin
) -> None:
    with capture_logs() as logs:
        await cases.roles.add("night", parse_policies("resources=piped;actions=get"), by=admin)
        await cases.projects.set_static_admin("root", PASSWORD, by=admin)
        key = await cases.api_keys.generate("ci", APIKey.READ_ONLY, by=admin)
        piped = await cases.pipeds.register("tokyo", "", by=admin)
        await cases.pipeds.update(piped.id, "osaka", "", by=admin)
        # Nothing is different.
        await cases.pipeds.update(piped.id, "osaka", "", by=admin)
        await cases.api_keys.disable(key.partition(".")[0], by=admin)
    assert changes([each for each in logs if each["event"] != "sessions ended"]) == [
        ("project settings changed", ("rbac_roles",)),
        ("project settings changed", ("static_admin",)),
        ("API key generated", None),
        ("piped registered", None),
        ("piped changed", ("name",)),
        ("API key disabled", None),
    ]
    for secret in (PASSWORD, key, piped.key):
        assert secret not in str(logs)
