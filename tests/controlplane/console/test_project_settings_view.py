# SPDX-License-Identifier: Apache-2.0
"""What roles allow, as the grid of roles shows it."""

import pytest

from pipecd.controlplane.auth.rbac import BUILT_IN_ROLES
from pipecd.controlplane.auth.rbac_policy import parse_policies
from pipecd.controlplane.console.project_settings_view import role_grants
from pipecd.controlplane.console.role_grid import RESOURCE_NAMES
from pipecd.proto.model.project_pb2 import ProjectRBACRole


def grants(role: ProjectRBACRole) -> dict[str, str]:
    return dict(zip(RESOURCE_NAMES.values(), role_grants(role), strict=True))


def test_the_built_in_roles() -> None:
    admin, editor, viewer = map(grants, BUILT_IN_ROLES)
    assert set(admin.values()) == {"everything"}
    assert (editor["Applications"], editor["Pipeds"], editor["API keys"]) == (
        "everything",
        "read",
        "",
    )
    assert (viewer["Deployments"], viewer["Project settings"]) == ("read", "read")


@pytest.mark.parametrize(
    ("policies", "text"),
    [
        pytest.param("resources=application;actions=update", "update", id="one action"),
        pytest.param(
            "resources=application;actions=get,list\n\nresources=application{env:dev};actions=*",
            "read; create, update, delete with env:dev",
            id="more with a label",
        ),
        pytest.param(
            "resources=application{env:dev},application{env:test};actions=get",
            "read with env:dev or env:test",
            id="either of two labels",
        ),
        pytest.param(
            "resources=application{env:dev};actions=get\n\n"
            "resources=application{env:test};actions=update",
            "get, update with certain labels",
            id="each action with labels of its own",
        ),
        pytest.param(
            f"resources=application{{env:{'x' * 60}}};actions=get",
            "read with certain labels",
            id="labels that are too long for a cell",
        ),
        pytest.param("resources=piped;actions=*", "", id="another resource"),
    ],
)
def test_a_role_of_the_project(policies: str, text: str) -> None:
    role = ProjectRBACRole(name="dev", policies=parse_policies(policies))
    assert grants(role)["Applications"] == text
