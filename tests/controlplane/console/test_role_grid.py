# SPDX-License-Identifier: Apache-2.0
"""Policies as a grid, and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecd.controlplane.auth.rbac import BUILT_IN_ROLES, Action, Permission, Resource, scope_of
from pipecd.controlplane.auth.rbac_policy import parse_policies, render_policies
from pipecd.controlplane.console.role_grid import (
    ACTIONS,
    LABELLED,
    RESOURCE_NAMES,
    GridRow,
    grid_of,
    parse_grid,
    policies_of,
)
from pipecd.model.errors import UserMistake
from pipecd.proto.model.project_pb2 import ProjectRBACRole

LABELS = st.dictionaries(st.sampled_from(["env", "team"]), st.sampled_from(["dev", "pay"]))


@st.composite
def grids(draw: st.DrawFn) -> dict[Resource, GridRow]:
    grid: dict[Resource, GridRow] = {}
    for resource in RESOURCE_NAMES:
        actions = draw(st.frozensets(st.sampled_from(ACTIONS)))
        has_labels = actions and resource in LABELLED
        grid[resource] = GridRow(actions, draw(LABELS) if has_labels else {})
    return grid


@given(grids())
def test_the_policies_of_a_grid_have_the_same_grid(grid: dict[Resource, GridRow]) -> None:
    if not any(row.actions for row in grid.values()):
        with pytest.raises(UserMistake, match="allows nothing"):
            policies_of(grid)
        return
    assert grid_of(policies_of(grid)) == grid
    # The text form reads them, too.
    assert grid_of(parse_policies(render_policies(policies_of(grid)))) == grid


@pytest.mark.parametrize("role", BUILT_IN_ROLES, ids=lambda role: role.name)
def test_the_grid_of_a_role_allows_what_the_role_allows(role: ProjectRBACRole) -> None:
    grid = grid_of(role.policies)
    assert grid
    same = ProjectRBACRole(name="same", policies=policies_of(grid))
    for resource in RESOURCE_NAMES:
        for action in (*ACTIONS, Action.ALL):
            permission = Permission(resource, action)
            allowed = scope_of((role,), permission).is_everything
            if action is not Action.ALL:
                assert scope_of((same,), permission).is_everything == allowed


@pytest.mark.parametrize(
    ("text", "has_grid"),
    [
        pytest.param("resources=application{a:b};actions=get", True, id="one set of labels"),
        pytest.param(
            "resources=application{a:b},application{c:d};actions=get",
            False,
            id="two sets of labels",
        ),
        pytest.param(
            "resources=application;actions=*\n\nresources=application{a:b};actions=get",
            True,
            id="labels that limit nothing",
        ),
        pytest.param(
            "resources=application;actions=get\n\nresources=application{a:b};actions=update",
            False,
            id="more with a label",
        ),
        pytest.param("resources=piped{a:b};actions=get", False, id="labels of what has none"),
    ],
)
def test_what_needs_text(text: str, *, has_grid: bool) -> None:
    assert (grid_of(parse_policies(text)) is not None) is has_grid


@pytest.mark.parametrize("text", ["x", "a:", ":b", "a:b,a:c", "a:b{", "a:b c"])
def test_labels_that_are_none(text: str) -> None:
    with pytest.raises(UserMistake, match="key:value"):
        parse_grid({"application.labels": text})
