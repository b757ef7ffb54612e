# SPDX-License-Identifier: Apache-2.0
"""A watch against a scripted API server: lists, resumed watches and errors."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecd.plugins.kubernetes.client import ApiError, open_client
from pipecd.plugins.kubernetes.cluster import ApiResource
from pipecd.plugins.kubernetes.kubeconfig import Connection
from pipecd.plugins.kubernetes.watch import ObjectStore, ObservedObject, ResourceWatch, observe
from pipecd.sdk import Backoff

PODS = ApiResource("", "v1", "Pod", "pods", True, frozenset({"list", "watch"}))
GONE = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}}
FORBIDDEN = {"kind": "Status", "message": "pods is forbidden", "reason": "Forbidden"}


def pod(name: str, version: str, owner: str = "set") -> dict[str, Any]:
    metadata = {"name": name, "uid": name, "resourceVersion": version}
    return {"metadata": {**metadata, "ownerReferences": [{"uid": owner}]}}


def event(kind: str, name: str, version: str) -> dict[str, Any]:
    return {"type": kind, "object": pod(name, version)}


def page(*pods: dict[str, Any], version: str = "10", more: str = "") -> dict[str, Any]:
    return {"metadata": {"resourceVersion": version, "continue": more}, "items": list(pods)}


@dataclass
class Script:
    """The responses of an API server in order; after the last one it never responds."""

    responses: list[Any]
    requests: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    changes: list[ObservedObject] = field(default_factory=list[ObservedObject])

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(ConnectionError, asyncio.IncompleteReadError):
            is_open = True
            while is_open:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                query = parse_qs(urlsplit(head.split()[1]).query)
                self.requests.append({name: values[0] for name, values in query.items()})
                if not self.responses:
                    await reader.read()
                    return
                is_open = self.respond(writer, self.responses.pop(0))
                await writer.drain()

    def respond(self, writer: asyncio.StreamWriter, response: Any) -> bool:
        """Writes a response; a list has the events of a watch, which then ends."""
        if isinstance(response, list):
            lines = "".join(f"{json.dumps(each)}\n" for each in response)
            writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + lines.encode())
            return False
        code = 403 if response is FORBIDDEN else 200
        body = json.dumps(response).encode()
        head = f"HTTP/1.1 {code} x\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        return True


@asynccontextmanager
async def running_watch(script: Script) -> AsyncIterator[ResourceWatch]:
    server = await asyncio.start_server(script.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, open_client(Connection(f"http://127.0.0.1:{port}")) as client:
        watch = ResourceWatch(client, PODS, script.changes.append, selector="a=b")
        running = asyncio.create_task(watch.run())
        try:
            async with asyncio.timeout(10):
                yield watch
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running


async def wait_for_pods(watch: ResourceWatch, *names: str) -> None:
    """Waits until exactly these pods are stored."""
    while True:
        stored = sorted(observed.key.name for observed in watch.objects.owned_by("set"))
        if stored == sorted(names):
            return
        await asyncio.sleep(0.01)


@pytest.fixture(autouse=True)
def short_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipecd.plugins.kubernetes.watch._BACKOFF", Backoff(0.01, 8))


async def test_a_long_list_is_read_page_by_page() -> None:
    script = Script([page(pod("a", "1"), more="next"), page(pod("b", "2"))])
    async with running_watch(script) as watch:
        await watch.wait_for_sync()
        await wait_for_pods(watch, "a", "b")
    assert script.requests[1]["continue"] == "next"
    assert {requests["labelSelector"] for requests in script.requests} == {"a=b"}


async def test_a_watch_resumes_at_the_last_resource_version() -> None:
    bookmark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "30"}}}
    script = Script(
        [
            page(pod("a", "1")),
            [event("ADDED", "b", "20"), bookmark],
            [event("DELETED", "a", "31")],
        ]
    )
    async with running_watch(script) as watch:
        await wait_for_pods(watch, "b")
    versions = [requests["resourceVersion"] for requests in script.requests if "watch" in requests]
    assert versions[:2] == ["10", "30"]


async def test_an_expired_resource_version_causes_a_new_list() -> None:
    script = Script([page(pod("a", "1")), [GONE], page(pod("b", "40"), version="50")])
    async with running_watch(script) as watch:
        await wait_for_pods(watch, "b")
        await watch.wait_for_sync()
    assert ["watch" in requests for requests in script.requests[:3]] == [False, True, False]


async def test_every_change_after_the_first_list_is_reported_once() -> None:
    running = pod("a", "21")
    running["status"] = {"phase": "Running"}
    script = Script(
        [
            page(pod("a", "1"), pod("b", "2")),
            [
                {"type": "MODIFIED", "object": running},
                {"type": "MODIFIED", "object": {**running, "spec": {"nodeName": "n"}}},
                event("DELETED", "b", "22"),
                event("DELETED", "x", "23"),
                GONE,
            ],
            page(running, pod("c", "40"), version="50"),
            [GONE],
            page(pod("c", "40"), version="60"),
        ]
    )
    async with running_watch(script) as watch:
        await wait_for_pods(watch, "c")
    assert [observed.key.name for observed in script.changes] == ["a", "b", "c", "a"]


async def test_a_refused_list_is_reported_and_retried() -> None:
    script = Script([FORBIDDEN, page(pod("a", "1"))])
    async with running_watch(script) as watch:
        with pytest.raises(ApiError, match="pods is forbidden"):
            await watch.wait_for_sync()
        await wait_for_pods(watch, "a")
        await watch.wait_for_sync()


async def test_objects_that_may_no_longer_be_listed_are_deleted() -> None:
    script = Script([page(pod("a", "1")), [GONE], FORBIDDEN])
    async with running_watch(script) as watch:
        with pytest.raises(ApiError):
            while True:
                await watch.wait_for_sync()
                await asyncio.sleep(0)
        await wait_for_pods(watch)


async def test_a_truncated_event_does_not_end_the_watch() -> None:
    broken = Script([page(pod("a", "1")), [event("ADDED", "b", "2")], [event("ADDED", "c", "3")]])
    original = broken.respond

    def cut(writer: asyncio.StreamWriter, response: Any) -> bool:
        if response == [event("ADDED", "b", "2")]:
            head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
            writer.write(head + b'8\r\n{"type":\r\n0\r\n\r\n')
            return False
        return original(writer, response)

    broken.respond = cut  # type: ignore[method-assign]
    async with running_watch(broken) as watch:
        await wait_for_pods(watch, "a", "c")


UIDS = st.sampled_from("abcdef")
ACTIONS = st.lists(st.tuples(st.booleans(), UIDS, st.lists(UIDS, max_size=2)))


@given(ACTIONS)
def test_owned_objects_are_indexed_after_any_changes(actions: list[tuple[bool, str, Any]]) -> None:
    observed, model = ObjectStore(), dict[str, list[str]]()
    for is_there, uid, owners in actions:
        body = {"metadata": {"uid": uid, "ownerReferences": [{"uid": each} for each in owners]}}
        if is_there:
            observed.put(observe(body, "v1", "Pod"))
        else:
            observed.delete(uid)
        model.pop(uid, None)
        if is_there and owners:
            model[uid] = owners
    assert len(observed) == len(model)
    for owner in "abcdef":
        assert {each.uid for each in observed.owned_by(owner)} == {
            uid for uid, owners in model.items() if owner in owners
        }
