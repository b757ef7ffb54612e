# SPDX-License-Identifier: Apache-2.0
"""Events that one side registers and the other side writes into Git."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pipecd.controlplane.datastore.events import EventFilter
from pipecd.proto.model import event_pb2
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.event_pb2 import Event
from pipecd.proto.service import web_pb2
from servers.our_installation import OpenInstallation
from servers.programs import OUR_PIPED
from servers.upstream import UpstreamInstallation

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.usefixtures("upstream")]

OFTEN = "  eventWatcher: {checkInterval: 2s}\n  plugins: [{name: wait}]\n"
CONFIG = """\
apiVersion: pipecd.dev/v1beta1
kind: Application
spec:
  name: cart
  pipeline:
    stages: [{name: WAIT, with: {duration: 1s}}]
  eventWatcher:
    - matcher: {name: image, labels: {app: cart}}
      handler:
        type: GIT_UPDATE
        config:
          commitMessage: "use {{ .Value }}"
          replacements: [{file: values.yaml, yamlField: $.image.tag}]
"""
VALUES = "image:\n  name: cart # ours\n  tag: v1   # of the image\n"
FILES = {"cart/app.pipecd.yaml": CONFIG, "cart/values.yaml": VALUES}
EVENT = ("event", "register", "--name", "image", "--labels", "app=cart", "--data", "v2")


async def test_our_piped_handles_events_of_upstreams_control_plane(
    upstream_installation: UpstreamInstallation,
    free_port: Callable[[], int],
    upstream_pipectl: Path,
) -> None:
    installation = upstream_installation
    before = installation.origin.commit(FILES)
    theirs = (
        "--address",
        installation.api_address,
        "--insecure",
        "--api-key",
        await installation.api_key(),
    )
    agent = await installation.register_piped("ours", OFTEN)
    flags = (f"--config-file={agent.config}", "--insecure=true", f"--admin-port={free_port()}")

    async with installation.running(OUR_PIPED, "run", *flags) as piped:
        await installation.eventually(lambda: installation.introduced(agent.id), piped)
        await installation.add_application("cart", Application(name="cart", piped_id=agent.id))
        assert (await installation.run(upstream_pipectl, *EVENT, *theirs)).code == 0
        another = [word.replace("app=cart", "app=other") for word in EVENT]
        assert (await installation.run(upstream_pipectl, *another, *theirs)).code == 0

        async def pushed() -> str:
            head = installation.origin.git("rev-parse", "main")
            return head if head != before else ""

        commit = await installation.eventually(pushed, piped)

        async def handled() -> Event | None:
            options = web_pb2.ListEventsRequest.Options()
            request = web_pb2.ListEventsRequest(options=options, page_size=10)
            events = (await installation.admin.call("ListEvents", request)).events
            mine = [event for event in events if event.labels["app"] == "cart"]
            return mine[0] if mine and mine[0].status else None

        event = await installation.eventually(handled, piped)
    assert event.status == event_pb2.EVENT_SUCCESS
    assert event.status_description == 'Successfully updated 1 files in the "site" repository'
    assert installation.origin.git("log", "-1", "--format=%s", commit) == "use v2"
    changed = installation.origin.git("show", f"{commit}:cart/values.yaml")
    assert changed == VALUES.replace("tag: v1", "tag: v2").strip()


async def test_upstreams_piped_handles_events_of_our_control_plane(
    open_installation: OpenInstallation,
    free_port: Callable[[], int],
    upstream_pipedv1: Path,
    upstream_pipectl: Path,
) -> None:
    async with open_installation() as installation:
        installation.origin.commit(FILES)
        agent = await installation.register_piped("theirs", "  eventWatcher: {checkInterval: 2s}\n")
        await installation.add_application("cart", Application(name="cart", piped_id=agent.id))
        ports = (f"--admin-port={free_port()}", f"--plugin-service-port={free_port()}")
        flags = (f"--config-file={agent.config}", "--insecure=true", *ports)
        async with installation.running(upstream_pipedv1, "run", *flags) as piped:
            await installation.eventually(lambda: installation.introduced(agent.id), piped)
            assert (
                await installation.run(upstream_pipectl, *EVENT, *installation.pipectl_flags())
            ).code == 0

            async def handled() -> Event | None:
                listed = await installation.cases.events.list(
                    EventFilter(project="demo"), by=installation.admin
                )
                [event] = listed.items
                return event if event.status else None

            event = await installation.eventually(handled, piped)
        assert event.status == event_pb2.EVENT_SUCCESS, event.status_description
        assert "tag: v2" in installation.origin.git("show", "main:cart/values.yaml")
