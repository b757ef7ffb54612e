# SPDX-License-Identifier: Apache-2.0
"""The API browser lists every endpoint with the form of its request and response."""

import json

from pipecd.controlplane.api.rest.openapi import openapi_document
from pipecd.controlplane.api.rest.routes import ROUTES
from pipecd.controlplane.console.api_browser import endpoint_groups


def test_every_route_is_listed_once_below_its_object() -> None:
    groups = endpoint_groups(openapi_document())
    listed = [(one.method, one.path) for group in groups for one in group.endpoints]
    assert sorted(listed) == sorted((route.method, route.path) for route in ROUTES)
    for group in groups:
        first = {one.path.split("/")[1] for one in group.endpoints}
        assert len(first) == 1, group.name


def test_an_endpoint_has_its_parameters_and_samples() -> None:
    endpoints = {
        one.id: one for group in endpoint_groups(openapi_document()) for one in group.endpoints
    }
    get = endpoints["GetApplication"]
    assert [(p.name, p.location) for p in get.parameters] == [("application_id", "path")]
    assert (get.method, get.body) == ("GET", "")
    assert "application" in json.loads(get.response)
    register = endpoints["RegisterEvent"]
    assert {"name", "data", "labels"} <= json.loads(register.body).keys()
    assert register.method == "POST"


def test_without_a_document_there_is_nothing_to_list() -> None:
    assert endpoint_groups({}) == ()
