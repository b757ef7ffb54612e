# SPDX-License-Identifier: Apache-2.0
"""Parsing and rendering of RBAC policies in text form."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecd.controlplane.auth.rbac import BUILT_IN_ROLES, Action, Resource
from pipecd.controlplane.auth.rbac_policy import parse_policies, render_policies
from pipecd.model.errors import UserMistake
from pipecd.proto.model.project_pb2 import ProjectRBACPolicy, ProjectRBACResource


def read(text: str) -> list[tuple[list[tuple[Resource, dict[str, str]]], list[Action]]]:
    return [
        (
            [(Resource(r.type), dict(r.labels)) for r in policy.resources],
            [Action(a) for a in policy.actions],
        )
        for policy in parse_policies(text)
    ]


@pytest.mark.parametrize(
    ("text", "policies"),
    [
        pytest.param(
            "resources=*;actions=*", [([(Resource.ALL, {})], [Action.ALL])], id="everything"
        ),
        pytest.param(
            "resources=application,deploymentChain;actions=get,list",
            [
                (
                    [(Resource.APPLICATION, {}), (Resource.DEPLOYMENT_CHAIN, {})],
                    [Action.GET, Action.LIST],
                )
            ],
            id="several resources and actions",
        ),
        pytest.param(
            "resources=application{env:dev,team:a-1};actions=update",
            [([(Resource.APPLICATION, {"env": "dev", "team": "a-1"})], [Action.UPDATE])],
            id="labels",
        ),
        pytest.param(
            " resources = piped ;\n actions = get ,\n  list \n",
            [([(Resource.PIPED, {})], [Action.GET, Action.LIST])],
            id="white space is ignored",
        ),
        pytest.param(
            "resources=event;actions=list\r\n\r\n\r\nresources=insight;actions=get",
            [([(Resource.EVENT, {})], [Action.LIST]), ([(Resource.INSIGHT, {})], [Action.GET])],
            id="blank lines between policies",
        ),
    ],
)
def test_a_text_is_parsed_with(text: str, policies: object) -> None:
    assert read(text) == policies


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(" \n", "a role needs at least one policy", id="an empty text"),
        pytest.param(
            "resources=aplication;actions=get",
            "line 1, column 11: 'aplication' is not a resource; use one of *, application",
            id="a misspelt resource",
        ),
        pytest.param(
            "resources=application;actions=get\n\nresources=piped;\n actions=get,reed",
            "line 4, column 14: 'reed' is not an action",
            id="a misspelt action in the second policy",
        ),
        pytest.param("actions=get", "line 1, column 1: expected 'resources='", id="no resources"),
        pytest.param("resources=piped", "expected ';actions=', got the end", id="no actions"),
        pytest.param("resources=;actions=get", "'' is not a resource", id="an empty resource"),
        pytest.param("resources=piped;actions=", "'' is not an action", id="an empty action"),
        pytest.param(
            "resources=piped{env};actions=get",
            "column 20: expected ':', got '}'",
            id="half a label",
        ),
        pytest.param(
            "resources=piped{:a};actions=get", "the key of a label is missing", id="no key"
        ),
        pytest.param(
            "resources=piped{a:};actions=get", "the value of a label is missing", id="no value"
        ),
        pytest.param(
            "resources=piped{a:b,a:c};actions=get", "label 'a' is given twice", id="a label twice"
        ),
        pytest.param("resources=piped{a:b;actions=get", "expected '}'", id="an unclosed brace"),
        pytest.param("resources=piped;actions=get;x", "got ';'", id="text after the actions"),
        pytest.param(
            "resources=piped;actions=get\nresources=event;actions=list",
            "'getresources' is not an action",
            id="two policies without a blank line",
        ),
    ],
)
def test_an_error_names_line_and_column(text: str, message: str) -> None:
    with pytest.raises(UserMistake) as mistake:
        parse_policies(text)
    assert message in str(mistake.value)


def test_the_built_in_roles_are_rendered() -> None:
    for role in BUILT_IN_ROLES:
        assert list(parse_policies(render_policies(role.policies))) == list(role.policies)


words = st.text(st.sampled_from("abc-./_0"), min_size=1, max_size=5)
resources = st.builds(
    lambda type, labels: ProjectRBACResource(type=type, labels=labels),
    st.sampled_from(ProjectRBACResource.ResourceType.values()),
    st.dictionaries(words, words, max_size=3),
)
policies = st.builds(
    lambda resources, actions: ProjectRBACPolicy(resources=resources, actions=actions),
    st.lists(resources, min_size=1, max_size=3),
    st.lists(st.sampled_from(ProjectRBACPolicy.Action.values()), min_size=1, max_size=3),
)


@given(st.lists(policies, min_size=1, max_size=3))
def test_rendered_policies_are_parsed_back(policies_in: list[ProjectRBACPolicy]) -> None:
    assert list(parse_policies(render_policies(policies_in))) == policies_in


@given(st.text(st.sampled_from("resourcactionspiped*=;,{}: \n\r\0é"), max_size=60))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    with suppress(UserMistake):
        assert parse_policies(text)
