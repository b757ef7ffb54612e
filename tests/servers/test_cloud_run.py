# SPDX-License-Identifier: Apache-2.0
"""The Cloud Run of the tests: it refuses what the API refuses, and carries out changes in time."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from servers.cloud_run import PROJECT, CloudRun


class Client:
    """Sends requests with a valid token."""

    def __init__(self, server: CloudRun) -> None:
        self.server = server

    def send(self, method: str, path: str, body: Any = None, *, token: str = "token-0") -> Any:
        prefix = f"{self.server.address}/apis/serving.knative.dev/v1/namespaces/"
        request = urllib.request.Request(
            prefix + path,
            None if body is None else json.dumps(body).encode(),
            {"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=5) as answer:
            return json.load(answer)

    def create(self, body: Any) -> Any:
        return self.send("POST", f"{PROJECT}/services", body)

    def replace(self, body: Any) -> Any:
        return self.send("PUT", f"{PROJECT}/services/web", body)

    def settle(self) -> None:
        for stored in (*self.server.services.values(), *self.server.revisions.values()):
            stored.ready_at = 0

    def conditions(self) -> dict[str, str]:
        shown = self.send("GET", f"{PROJECT}/services/web")
        return {each["type"]: each["status"] for each in shown["status"]["conditions"]}


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    server = CloudRun(tmp_path, seconds=100)
    yield Client(server)
    server.close()


def service(
    image: str = "shop:v1", revision: str = "web-one", traffic: Any = None, **metadata: Any
) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "template": {"metadata": {"name": revision}, "spec": {"containers": [{"image": image}]}}
    }
    if traffic is not None:
        spec["traffic"] = [
            {"revisionName": name, "percent": each} for name, each in traffic.items()
        ]
    return {
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Service",
        "metadata": {"name": "web", **metadata},
        "spec": spec,
    }


def unknown_field() -> dict[str, Any]:
    body = service()
    body["spec"]["template"]["spec"]["color"] = "red"
    return body


REFUSED: dict[str, tuple[dict[str, Any], int, str]] = {
    "a field that the API does not have": (unknown_field(), 400, 'Unknown name "color"'),
    "a number as a text": (service(labels={"a": 1}), 400, "TYPE_STRING"),
    "a label with capitals": (service(labels={"a": "B"}), 400, "label 'a' is invalid"),
    "the name of a revision of another service": (
        service(revision="other-one"),
        400,
        "must begin with 'web-'",
    ),
    "shares that are not everything": (service(traffic={"web-one": 90}), 400, "must sum to 100"),
    "traffic to a revision that does not exist": (
        service(traffic={"web-two": 100}),
        400,
        "does not exist",
    ),
    "another project": (service(namespace="other"), 400, "namespace"),
}


@pytest.mark.parametrize(("body", "code", "text"), REFUSED.values(), ids=REFUSED)
def test_the_api_refuses(client: Client, body: dict[str, Any], code: int, text: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        client.create(body)
    assert refused.value.code == code
    assert text in json.load(refused.value)["error"]["message"]
    assert (client.server.services, client.server.revisions) == ({}, {})


def test_a_token_that_was_not_issued_is_refused(client: Client) -> None:
    with pytest.raises(urllib.error.HTTPError, match="401"):
        client.send("GET", f"{PROJECT}/services/web", token="other")


def test_a_change_takes_its_time_and_the_old_revision_serves_meanwhile(client: Client) -> None:
    client.create(service())
    client.settle()
    assert client.server.traffic("web") == {"web-one": 100}
    client.replace(service("shop:v2", "web-two", {"web-two": 100}))
    assert client.conditions()["Ready"] == "Unknown"
    assert client.server.traffic("web") == {"web-one": 100}
    client.settle()
    assert client.conditions() == dict.fromkeys(
        ("Ready", "ConfigurationsReady", "RoutesReady"), "True"
    )
    assert client.server.traffic("web") == {"web-two": 100}


def test_a_failed_revision_gets_no_traffic_and_others_may(client: Client) -> None:
    client.create(service())
    client.settle()
    client.server.broken_images["shop:v2"] = "it crashes"
    client.replace(service("shop:v2", "web-two", {"web-two": 100}))
    client.settle()
    assert set(client.conditions().values()) == {"False"}
    assert client.server.traffic("web") == {"web-one": 100}
    client.replace(service("shop:v2", "web-two", {"web-one": 100}))
    client.settle()
    assert client.conditions() == {
        "Ready": "False",
        "ConfigurationsReady": "False",
        "RoutesReady": "True",
    }
    assert client.server.traffic("web") == {"web-one": 100}


def test_the_same_template_is_the_same_revision(client: Client) -> None:
    client.create(service())
    client.replace(service())
    assert list(client.server.revisions) == ["web-one"]
    with pytest.raises(urllib.error.HTTPError) as refused:
        client.replace(service("shop:v2"))
    assert (
        "with different configuration already exists"
        in json.load(refused.value)["error"]["message"]
    )


def test_an_old_version_of_a_service_is_not_replaced(client: Client) -> None:
    old = client.create(service())["metadata"]["resourceVersion"]
    client.replace(service(resourceVersion=old))
    with pytest.raises(urllib.error.HTTPError) as refused:
        client.replace(service(resourceVersion=old))
    assert json.load(refused.value)["error"]["status"] == "ABORTED"
