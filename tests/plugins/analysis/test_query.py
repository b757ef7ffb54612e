# SPDX-License-Identifier: Apache-2.0
"""The template variables of queries."""

import pytest

from pipecd.plugins.analysis.query import render_query
from pipecd.sdk import UserMistake

CUSTOM = {"k8sNamespace": "prod", "job": "web"}

FILLED = [
    pytest.param('up{app="{{ .App.Name }}"}', 'up{app="shop"}', id="the name of the application"),
    pytest.param("{{ .App.Env }}|", "|", id="the environment, which is always empty"),
    pytest.param("{{ .K8s.Namespace }}", "prod", id="the namespace"),
    pytest.param("{{ .Variant.Name }}", "canary", id="the variant"),
    pytest.param("{{ .VariantCustomArgs.pod }}", "web-canary", id="an argument of the variant"),
    pytest.param("{{ .AppCustomArgs.job }}", "web", id="an argument of the application"),
    pytest.param("{{ if .AppCustomArgs.zone }}z{{ else }}any{{ end }}", "any", id="an argument that may be missing"),
    pytest.param("no template <no value>", "no template <no value>", id="text that resembles a missing argument"),
]  # fmt: skip


@pytest.mark.parametrize(("query", "expected"), FILLED)
def test_a_query_contains(query: str, expected: str) -> None:
    assert render_query(query, "canary", {"pod": "web-canary"}, "shop", CUSTOM) == expected


def test_without_a_namespace_there_is_none() -> None:
    assert render_query("{{ .K8s.Namespace }}", "primary", {}, "shop", {}) == ""


MISTAKES = [
    pytest.param("{{ .AppCustomArgs.zone }}", r"canary has no value for \.AppCustomArgs\.zone; .*appArgs", id="a missing argument of the application"),
    pytest.param("{{ .VariantCustomArgs.a }}", r"no value for \.VariantCustomArgs\.a; .*canaryArgs", id="a missing argument of the variant"),
    pytest.param("{{ .Nothing }}", "no entry for key 'Nothing'", id="a variable that does not exist"),
    pytest.param("{{ .App", "template: query:1", id="a template that does not end"),
]  # fmt: skip


@pytest.mark.parametrize(("query", "message"), MISTAKES)
def test_a_query_is_refused_with(query: str, message: str) -> None:
    with pytest.raises(UserMistake, match=message):
        render_query(query, "canary", {}, "shop", CUSTOM)
