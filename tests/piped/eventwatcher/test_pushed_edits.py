# SPDX-License-Identifier: Apache-2.0
"""The value of an event is written once: a piped that comes back leaves alone what users made of it."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from pipecd.proto.model import event_pb2
from servers.control_plane import GatedControlPlane, OpenControlPlane
from servers.eventwatcher import EventClient, watching_events
from servers.origin import Origin
from servers.piped import piped_config, started_piped
from servers.polling import eventually

WATCHER = """\
apiVersion: pipecd.dev/v1beta1
kind: EventWatcher
spec:
  events:
    - name: image
      replacements: [{file: m.yaml, yamlField: $.tag}]
    - name: config
      replacements: [{file: n.yaml, yamlField: $.tag}]
"""
FILES = {".pipe/events.yaml": WATCHER, "m.yaml": "tag: v1\n", "n.yaml": "tag: v1\n"}
WRITTEN = 'Successfully updated 1 files in the "site" repository'


def tag(origin: Origin, file: str = "m.yaml", revision: str = "main") -> str:
    return origin.git("show", f"{revision}:{file}").removeprefix("tag: ")


@asynccontextmanager
async def refused_reports(plane: GatedControlPlane) -> AsyncGenerator[None, None]:
    """Until the end of the block the control plane does not take the outcome of events.

    The piped that started within it has ended then without a report.
    """
    plane.gate.refusals["ReportEventStatuses"] = grpc.StatusCode.UNAVAILABLE
    yield
    plane.gate.refusals.clear()


async def not_reported(plane: GatedControlPlane) -> None:
    """Waits until a piped has written values and tries to report them."""
    await eventually(lambda: "ReportEventStatuses" in plane.gate.calls)


async def test_a_value_that_a_user_reverted_before_its_report_is_not_written_again(
    open_plane: OpenControlPlane, shop: Origin
) -> None:
    shop.commit(FILES)
    async with open_plane() as plane:
        events = EventClient(plane)
        ids = [await events.register(name, "v2") for name in ("image", "config")]
        async with refused_reports(plane), watching_events(plane, {"site": shop.remote}):
            await not_reported(plane)
        assert (tag(shop), tag(shop, "n.yaml")) == ("v2", "v2")
        shop.git("revert", "--no-edit", "HEAD")
        async with watching_events(plane, {"site": shop.remote}):
            assert [await events.succeeded(id_) for id_ in ids] == [WRITTEN, WRITTEN]
            # Later values are written.
            await events.succeeded(await events.register("config", "v3"))
    assert (tag(shop), tag(shop, "n.yaml")) == ("v1", "v3")


@pytest.mark.slow
async def test_a_killed_piped_does_not_write_a_reverted_value_again(
    open_plane: OpenControlPlane, shop: Origin, tmp_path: Path
) -> None:
    shop.commit(FILES)
    config = tmp_path / "piped.yaml"
    async with open_plane() as plane:
        text = piped_config(plane.piped.id, plane.piped.key, address=plane.address, remote=shop.remote)  # fmt: skip
        config.write_text(text)
        events = EventClient(plane)
        id_ = await events.register("image", "v2")
        async with refused_reports(plane), started_piped(config):
            await not_reported(plane)
        assert (await events.all())[id_].status == event_pb2.EVENT_NOT_HANDLED
        assert tag(shop) == "v2"
        shop.git("revert", "--no-edit", "HEAD")
        async with started_piped(config):
            assert await events.succeeded(id_) == WRITTEN
    assert tag(shop) == "v1"


async def test_a_value_whose_push_arrived_without_an_answer_is_not_written_again(
    open_plane: OpenControlPlane, shop: Origin
) -> None:
    shop.commit(FILES)
    shop.git("config", "receive.denyCurrentBranch", "ignore")
    # A user reverts the commit at once, and the answer to the push is lost.
    hook = shop.path / ".git" / "hooks" / "post-receive"
    hook.write_text(
        '#!/bin/sh\nrm -- "$0"\n'
        "export GIT_AUTHOR_NAME=Ann GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=Ann GIT_COMMITTER_EMAIL=a@b\n"
        "git update-ref refs/heads/main $(git commit-tree main~1^{tree} -p main -m revert)\n"
        "kill -KILL $PPID\n"
    )
    hook.chmod(0o755)
    async with open_plane() as plane, watching_events(plane, {"site": shop.remote}):
        events = EventClient(plane)
        assert await events.succeeded(await events.register("image", "v2")) == WRITTEN
    assert not hook.exists()
    assert tag(shop) == "v1"
    assert shop.git("log", "--format=%s").count('set by Event "image"') == 1


async def test_a_value_whose_push_did_not_arrive_is_written_after_a_restart(
    open_plane: OpenControlPlane, shop: Origin
) -> None:
    shop.commit(FILES)
    hook = shop.path / ".git" / "hooks" / "pre-receive"
    hook.write_text("#!/bin/sh\nexit 1\n")
    hook.chmod(0o755)
    async with open_plane() as plane:
        events = EventClient(plane)
        id_ = await events.register("image", "v2")
        async with refused_reports(plane), watching_events(plane, {"site": shop.remote}):
            await not_reported(plane)
        hook.unlink()
        async with watching_events(plane, {"site": shop.remote}):
            assert await events.succeeded(id_) == WRITTEN
    assert tag(shop) == "v2"


async def test_a_value_that_a_force_push_removed_is_written_again(
    open_plane: OpenControlPlane, shop: Origin
) -> None:
    shop.commit(FILES)
    async with open_plane() as plane:
        events = EventClient(plane)
        id_ = await events.register("image", "v2")
        async with refused_reports(plane), watching_events(plane, {"site": shop.remote}):
            await not_reported(plane)
        shop.git("reset", "--quiet", "--hard", "HEAD~1")
        shop.commit({"other": "x"})
        async with watching_events(plane, {"site": shop.remote}):
            assert await events.succeeded(id_) == WRITTEN
    assert tag(shop) == "v2"


@pytest.mark.parametrize("content", [b"", b"[]", b'{"site": {"1": {"x": {"commits": ["--all"]}}}}'])
async def test_without_a_readable_file_values_are_written_as_they_would_be_without_it(
    open_plane: OpenControlPlane, shop: Origin, content: bytes
) -> None:
    shop.commit(FILES)
    async with open_plane() as plane:
        file = plane.directory / "mirrors" / "pushed.json"
        events = EventClient(plane)
        id_ = await events.register("image", "v2")
        async with refused_reports(plane), watching_events(plane, {"site": shop.remote}):
            await not_reported(plane)
        file.write_bytes(content)
        async with watching_events(plane, {"site": shop.remote}):
            assert await events.succeeded(id_) == "Nothing to commit"
        assert file.with_name("pushed.json.damaged-1").read_bytes() == content


async def test_a_reported_event_is_forgotten_with_the_next_push(
    open_plane: OpenControlPlane, shop: Origin
) -> None:
    shop.commit(FILES)
    async with open_plane() as plane:
        file = plane.directory / "mirrors" / "pushed.json"
        events = EventClient(plane)
        async with watching_events(plane, {"site": shop.remote}) as queue:
            first = await events.register("image", "v2")
            await events.succeeded(first)
            await eventually(lambda: queue.is_reported("site", first))
            assert first in file.read_text()
            second = await events.register("image", "v3")
            await events.succeeded(second)
        assert first not in file.read_text()
        assert second in file.read_text()


async def test_a_commit_of_a_pull_request_that_a_user_changed_is_not_written_again(
    open_plane: OpenControlPlane, shop: Origin
) -> None:
    application = """\
apiVersion: pipecd.dev/v1beta1
kind: Application
spec:
  name: cart
  eventWatcher:
    - matcher: {name: image}
      handler:
        type: GIT_UPDATE
        config:
          makePullRequest: true
          replacements: [{file: m.yaml, yamlField: $.tag}]
"""
    shop.commit({"cart/app.pipecd.yaml": application, "cart/m.yaml": "tag: v1\n"})
    async with open_plane() as plane:
        await plane.piped.add_repository("site", shop.remote)
        await plane.piped.add_application("cart")
        events = EventClient(plane)
        id_ = await events.register("image", "v2")
        branch = f"image-{id_}"
        async with refused_reports(plane), watching_events(plane, {"site": shop.remote}):
            await not_reported(plane)
        assert tag(shop, "cart/m.yaml", branch) == "v2"
        shop.git("checkout", "--quiet", branch)
        shop.git("revert", "--no-edit", "HEAD")
        shop.git("checkout", "--quiet", "main")
        async with watching_events(plane, {"site": shop.remote}):
            assert await events.succeeded(id_) == f"{WRITTEN}, branch {branch}"
    assert tag(shop, "cart/m.yaml", branch) == "v1"
