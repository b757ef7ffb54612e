# SPDX-License-Identifier: Apache-2.0
"""The permissions of built-in and custom roles."""

import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecd.controlplane.auth import rbac
from pipecd.controlplane.auth.rbac import Action, Permission, Resource
from pipecd.proto.model import project_pb2 as pb

WIRE = Path(__file__).parents[2] / "spec" / "wire.csv"

READS = {"GET", "LIST"}
# The grants of Editor and Viewer, by resource instead of by role.
SEEN = ("APPLICATION", "DEPLOYMENT", "PIPED", "DEPLOYMENT_CHAIN")
VIEWER = {(r, a) for r in SEEN for a in READS} | {
    ("PROJECT", "GET"),
    ("INSIGHT", "GET"),
    ("EVENT", "LIST"),
}
EDITOR = VIEWER | {
    (r, a)
    for r in ("APPLICATION", "DEPLOYMENT")
    for a in ("GET", "LIST", "CREATE", "UPDATE", "DELETE")
}


def rules_of_the_proto() -> list[tuple[str, str, str]]:
    with WIRE.open(newline="") as rows:
        rules = [
            (row["name"], row["rules"].removeprefix("rbac="))
            for row in csv.DictReader(rows)
            if row["kind"] == "rpc" and row["rules"].startswith("rbac=")
        ]
    return [(name, *rule.split(":", 1)) for name, rule in rules if ":" in rule]  # type: ignore[misc]


def allows(role: str, permission: Permission) -> bool:
    roles = rbac.roles_named(rbac.BUILT_IN_ROLES, (role,))
    return rbac.scope_of(roles, permission).is_everything


@pytest.mark.parametrize(
    ("resource", "action"),
    [pytest.param(r, a, id=f"{rpc} needs {r}:{a}") for rpc, r, a in rules_of_the_proto()],
)
def test_built_in_roles_grant_what_the_proto_options_say(resource: str, action: str) -> None:
    permission = Permission(Resource[resource], Action[action])
    assert allows("Admin", permission)
    assert allows("Editor", permission) == ((resource, action) in EDITOR)
    assert allows("Viewer", permission) == ((resource, action) in VIEWER)


@pytest.mark.parametrize("action", [Action.GET, Action.LIST])
@pytest.mark.parametrize("role", ["Admin", "Editor", "Viewer"])
def test_every_built_in_role_can_read_deployment_chains(role: str, action: Action) -> None:
    assert allows(role, Permission(Resource.DEPLOYMENT_CHAIN, action))


def test_most_rpcs_have_a_rule_in_the_proto() -> None:
    assert len(rules_of_the_proto()) > 40


def custom(*policies: pb.ProjectRBACPolicy) -> tuple[pb.ProjectRBACRole, ...]:
    return (pb.ProjectRBACRole(name="custom", policies=policies),)


def policy(
    resource: pb.ProjectRBACResource.ResourceType.ValueType,
    action: pb.ProjectRBACPolicy.Action.ValueType,
    **labels: str,
) -> pb.ProjectRBACPolicy:
    return pb.ProjectRBACPolicy(
        resources=[pb.ProjectRBACResource(type=resource, labels=labels)], actions=[action]
    )


APP, DEPLOYMENT = pb.ProjectRBACResource.APPLICATION, pb.ProjectRBACResource.DEPLOYMENT
ANYTHING, SYNC = pb.ProjectRBACResource.ALL, pb.ProjectRBACPolicy.UPDATE
DO_ANYTHING = pb.ProjectRBACPolicy.ALL
UPDATE_APPLICATION = Permission(Resource.APPLICATION, Action.UPDATE)


@pytest.mark.parametrize(
    ("roles", "labels", "allowed"),
    [
        pytest.param(custom(policy(APP, SYNC)), {}, True, id="a policy without labels covers all"),
        pytest.param(
            custom(policy(APP, SYNC, env="dev")),
            {"env": "dev", "team": "x"},
            True,
            id="all labels of the policy are on the thing",
        ),
        pytest.param(
            custom(policy(APP, SYNC, env="dev", team="y")),
            {"env": "dev", "team": "x"},
            False,
            id="one label of the policy differs",
        ),
        pytest.param(
            custom(policy(APP, SYNC, env="dev")),
            {},
            False,
            id="a thing without labels is not meant",
        ),
        pytest.param(
            custom(policy(APP, SYNC, env="dev"), policy(APP, SYNC, env="test")),
            {"env": "test"},
            True,
            id="one of two policies suffices",
        ),
        pytest.param(
            custom(policy(DEPLOYMENT, SYNC)), {}, False, id="another resource does not count"
        ),
        pytest.param(
            custom(policy(APP, pb.ProjectRBACPolicy.GET)), {}, False, id="another action does not"
        ),
        pytest.param(
            custom(policy(ANYTHING, DO_ANYTHING, env="dev")),
            {"env": "dev"},
            True,
            id="a star with labels covers objects with the labels",
        ),
        pytest.param(
            custom(policy(ANYTHING, DO_ANYTHING, env="dev")),
            {"env": "prod"},
            False,
            id="a star with labels covers no other objects",
        ),
    ],
)
def test_custom_policies(
    roles: tuple[pb.ProjectRBACRole, ...], labels: dict[str, str], allowed: bool
) -> None:
    assert rbac.scope_of(roles, UPDATE_APPLICATION).covers(labels) is allowed


def test_a_stored_role_cannot_take_the_name_of_a_built_in_one() -> None:
    evil = pb.ProjectRBACRole(name="Viewer", policies=[policy(ANYTHING, DO_ANYTHING)])
    roles = rbac.roles_named(rbac.roles_of(pb.Project(rbac_roles=[evil])), ("Viewer",))
    assert rbac.scope_of(roles, UPDATE_APPLICATION).is_empty


def test_unknown_role_names_grant_nothing() -> None:
    assert rbac.roles_named(rbac.BUILT_IN_ROLES, ("admin", "Owner", "")) == ()


def test_legacy_teams_become_groups_of_their_highest_role() -> None:
    project = pb.Project(
        rbac=pb.ProjectRBACConfig(admin="org/a", editor="org/b", viewer="org/a"),
        user_groups=[pb.ProjectUserGroup(sso_group="org/c", role="Viewer")],
    )
    groups = [(g.sso_group, g.role) for g in rbac.user_groups_of(project)]
    assert groups == [("org/a", "Admin"), ("org/b", "Editor"), ("org/c", "Viewer")]


def test_the_enums_equal_those_of_the_proto() -> None:
    assert dict(pb.ProjectRBACResource.ResourceType.items()) == {r.name: r.value for r in Resource}
    assert dict(pb.ProjectRBACPolicy.Action.items()) == {a.name: a.value for a in Action}


labels = st.dictionaries(st.sampled_from("abc"), st.sampled_from("xy"), max_size=3)


@given(granted=st.lists(labels, max_size=3), thing=labels)
def test_more_labels_on_an_object_never_remove_a_permission(
    granted: list[dict[str, str]], thing: dict[str, str]
) -> None:
    scope = rbac.Scope(tuple(granted))
    if scope.covers(thing):
        assert scope.covers({**thing, "extra": "label"})
    assert scope.covers({}) == scope.is_everything
