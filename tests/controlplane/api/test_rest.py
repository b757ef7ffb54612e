# SPDX-License-Identifier: Apache-2.0
"""APIService as JSON over HTTP, and its OpenAPI document."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from pipecd.controlplane.api.api_service import SERVICE, api_table
from pipecd.controlplane.api.rest import PREFIX, create_rest
from pipecd.controlplane.api.rest.openapi import openapi_document
from pipecd.controlplane.api.rest.routes import METHODS, ROUTES
from pipecd.controlplane.auth.credentials import Source
from pipecd.controlplane.auth.subject import ApiKeyCaller, User
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.pipeds import RegisteredPiped
from pipecd.controlplane.web import WebServer, http_server
from pipecd.observe.metrics import ServerMetrics
from pipecd.proto.model.apikey_pb2 import APIKey
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.wire.server import RECEIVE_LIMIT


@pytest.fixture
async def site(cases: UseCases) -> AsyncIterator[str]:
    web = WebServer(create_rest(api_table(cases), cases.api_keys.verify))
    async with http_server(web, host="127.0.0.1", port=0) as port:
        yield f"http://127.0.0.1:{port}{PREFIX}"
        await web.stop()


@pytest.fixture
async def http(site: str, cases: UseCases, admin: User) -> AsyncIterator[httpx2.AsyncClient]:
    """A client with a read-write API key."""
    key = await cases.api_keys.generate("ci", APIKey.READ_WRITE, by=admin)
    headers = {"authorization": f"Bearer {key}"}
    async with httpx2.AsyncClient(base_url=site, headers=headers) as client:
        yield client


async def test_an_application_from_registration_to_deletion(
    http: httpx2.AsyncClient, registered: RegisteredPiped, application: Application
) -> None:
    draft = {
        "name": "web",
        "piped_id": registered.id,
        "gitPath": {"repo": {"id": "site"}, "path": "apps/web"},
        "kind": "ECS",
        "platform_provider": "ecs",
        "labels": {"env": "prod"},
    }
    added = await http.post("applications", json=draft)
    assert added.status_code == 200, added.text
    id = added.json()["application_id"]
    shown = (await http.get(f"applications/{id}")).json()["application"]
    assert (shown["name"], shown["kind"], shown["labels"]) == ("web", "ECS", {"env": "prod"})
    assert (await http.post(f"applications/{id}/disable")).json() == {"application_id": id}
    listed = (await http.get("applications?disabled=true")).json()["applications"]
    assert [a["id"] for a in listed] == [id]
    by_label = (await http.get("applications?labels=env:dev&limit=5")).json()["applications"]
    assert [a["id"] for a in by_label] == [application.id]
    assert (await http.post(f"applications/{id}/enable")).status_code == 200
    command = (await http.post(f"applications/{id}/sync", json={})).json()["command_id"]
    assert (await http.get(f"commands/{command}")).json()["command"]["application_id"] == id
    assert (await http.delete(f"applications/{id}")).status_code == 200


async def test_deployments_events_and_pipeds(
    http: httpx2.AsyncClient, deployment: Deployment
) -> None:
    listed = (await http.get("deployments?statuses=DEPLOYMENT_PLANNED")).json()["deployments"]
    assert [d["id"] for d in listed] == [deployment.id]
    assert (await http.get(f"deployments/{deployment.id}/logs")).status_code == 200
    event = await http.post("events", json={"name": "image", "data": "v2", "labels": {"a": "b"}})
    assert event.json()["event_id"]
    piped = (await http.post("pipeds", json={"name": "edge"})).json()
    assert len(piped["key"]) == 50
    # The id in the path takes precedence over the body.
    renamed = {"name": "edge2", "piped_id": "another", "pipedId": "another"}
    assert (await http.put(f"pipeds/{piped['id']}", json=renamed)).status_code == 200
    assert (await http.get(f"pipeds/{piped['id']}")).json()["piped"]["name"] == "edge2"


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code", "message"),
    [
        pytest.param("GET", "applications/x", b"", 404, "NOT_FOUND", "Application is not found", id="an unknown application"),
        pytest.param("POST", "applications", b"{", 400, "INVALID_ARGUMENT", "the body is not JSON", id="a body that is not JSON"),
        pytest.param("POST", "applications", b"[" * 100_000, 400, "INVALID_ARGUMENT", "the body is not JSON", id="a deeply nested body"),
        pytest.param("POST", "applications", b"[]", 400, "INVALID_ARGUMENT", "not an object", id="a body that is not an object"),
        pytest.param("POST", "applications", b'{"nmae": "x"}', 400, "INVALID_ARGUMENT", 'no field named "nmae"', id="an unknown field"),
        pytest.param("POST", "applications", b'{"name": 1}', 400, "INVALID_ARGUMENT", "name", id="a number instead of a string"),
        pytest.param("POST", "applications", b"{}", 400, "INVALID_ARGUMENT", "AddApplicationRequest.Name: value length must be at least 1 runes", id="a violated validation rule"),
        pytest.param("GET", "applications?limit=many", b"", 400, "INVALID_ARGUMENT", "'many' is not a valid limit", id="a limit that is not a number"),
        pytest.param("GET", "applications?limit=99999999999", b"", 400, "INVALID_ARGUMENT", "limit", id="a limit that is too large"),
        pytest.param("GET", "applications?disabled=perhaps", b"", 400, "INVALID_ARGUMENT", "'perhaps' is not a valid disabled", id="a flag that is not a boolean"),
        pytest.param("GET", "applications?labels=env", b"", 400, "INVALID_ARGUMENT", "write labels as key:value", id="a label without a value"),
        pytest.param("GET", "applications?colour=red", b"", 400, "INVALID_ARGUMENT", "'colour' is not a parameter", id="an unknown parameter"),
        pytest.param("GET", "nothing", b"", 404, "NOT_FOUND", "does not exist", id="an unknown path"),
        pytest.param("PATCH", "applications", b"", 405, "NOT_FOUND", "does not support the method", id="an unsupported method"),
        pytest.param("POST", "events", b" " * (RECEIVE_LIMIT + 1), 413, "RESOURCE_EXHAUSTED", "larger than the limit", id="a body that is too large"),
    ],
)  # fmt: skip
async def test_the_error_of(
    *,
    http: httpx2.AsyncClient,
    method: str,
    path: str,
    body: bytes,
    status: int,
    code: str,
    message: str,
) -> None:
    response = await http.request(method, path, content=body)
    assert (response.status_code, response.json()["code"]) == (status, code), response.text
    assert message in response.json()["message"]


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer wrong", "Basic YTpi", "Bearer a.b"])
async def test_authentication_fails_before_validation(site: str, header: str) -> None:
    async with httpx2.AsyncClient(base_url=site) as client:
        response = await client.post("events", content=b"{", headers={"authorization": header})
    assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer")


async def test_a_request_is_authenticated_once_and_counted_as_its_rpc(
    cases: UseCases, admin: User
) -> None:
    metrics = ServerMetrics.new()
    authenticated: list[str] = []

    async def authenticate(key: str, source: Source) -> ApiKeyCaller:
        authenticated.append(key)
        return await cases.api_keys.verify(key, source)

    key = await cases.api_keys.generate("ci", APIKey.READ_WRITE, by=admin)
    web = WebServer(create_rest(api_table(cases, observer=metrics.rpc), authenticate))
    headers = {"authorization": f"Bearer {key}"}
    async with http_server(web, host="127.0.0.1", port=0) as port:
        url = f"http://127.0.0.1:{port}{PREFIX}"
        async with httpx2.AsyncClient(base_url=url, headers=headers) as http:
            assert (await http.get("applications")).status_code == 200
            assert (await http.get("applications/x")).status_code == 404
        await web.stop()
    assert authenticated == [key, key]
    service = {"grpc_type": "unary", "grpc_service": SERVICE.full_name}
    for rpc, code in (("ListApplications", "OK"), ("GetApplication", "NotFound")):
        labels = {"pipecd_component": "server", **service, "grpc_method": rpc, "grpc_code": code}
        assert metrics.registry.get_sample_value("grpc_server_handled_total", labels) == 1


async def test_a_read_only_api_key_cannot_write(
    site: str, cases: UseCases, admin: User, application: Application
) -> None:
    key = await cases.api_keys.generate("reader", APIKey.READ_ONLY, by=admin)
    headers = {"authorization": f"API-KEY {key}"}
    async with httpx2.AsyncClient(base_url=site, headers=headers) as reader:
        assert (await reader.get("applications")).status_code == 200
        rejected = await reader.delete(f"applications/{application.id}")
    assert (rejected.status_code, rejected.json()["message"]) == (403, "Permission denied")


def test_every_rpc_has_one_route() -> None:
    assert sorted(r.rpc for r in ROUTES) == sorted(METHODS)
    assert len({(r.method, r.path) for r in ROUTES}) == len(ROUTES)
    for route in ROUTES:
        fields = {field.name for field in route.descriptor.input_type.fields}
        assert set(route.path_fields) <= fields


def test_the_openapi_document_names_what_a_request_needs() -> None:
    events: Any = openapi_document()["paths"]["/events"]["post"]["requestBody"]
    schema = events["content"]["application/json"]["schema"]
    assert (events["required"], schema["required"]) == (True, ["name", "data"])


async def test_the_openapi_document_is_public_and_its_references_resolve(
    site: str,
) -> None:
    async with httpx2.AsyncClient(base_url=site) as http:
        document: Any = (await http.get("openapi.json")).json()
    assert document == json.loads(json.dumps(openapi_document()))
    operations = [o for path in document["paths"].values() for o in path.values()]
    assert {o["operationId"] for o in operations} == set(METHODS)
    schemas = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert set(references(document)) <= schemas
    listing = document["paths"]["/applications"]["get"]["parameters"]
    assert "Error" in document["components"]["schemas"]
    assert {"labels", "limit", "cursor"} <= {p["name"] for p in listing}


def references(part: Any) -> list[str]:
    if isinstance(part, dict):
        own = [part["$ref"]] if "$ref" in part else []
        return own + [r for value in part.values() for r in references(value)]
    return [r for value in part for r in references(value)] if isinstance(part, list) else []
