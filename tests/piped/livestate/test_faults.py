# SPDX-License-Identifier: Apache-2.0
"""An error of one application is reported as its sync state and affects no other."""

import shutil
from dataclasses import replace

import grpc

from pipecd.model.application import SyncStatus
from pipecd.model.errors import Unavailable, UserMistake
from pipecd.secrets.binding import Binding
from servers.livestate import INTERVALS, OpenLiveState
from servers.polling import eventually

SECRET = "hunter2-hunter2"
ENCRYPTED = """\
  encryption:
    encryptedSecrets: {password: "SECRET"}
    decryptionTargets: [files/a]
"""


async def test_a_hanging_platform_delays_no_other_application(
    open_live_state: OpenLiveState,
) -> None:
    async with open_live_state() as env:
        ids = {}
        for name in ("cart", "shop"):
            ids[name] = await env.add_deployed(name, a="1")
        env.plugin.hanging.add("cart")
        async with env.reporting(plugin_timeout=0.3):
            await eventually(env.has_sync_status(ids["shop"], SyncStatus.SYNCED))
            reason = "plugin shelf did not return the live state within 0.3s"
            await eventually(env.has_sync_status(ids["cart"], SyncStatus.UNKNOWN, reason))
            env.plugin.hanging.clear()
            await eventually(env.has_sync_status(ids["cart"], SyncStatus.SYNCED))


async def test_only_a_lasting_outage_changes_the_sync_state(
    open_live_state: OpenLiveState,
) -> None:
    async with open_live_state() as env:
        id_ = await env.add_deployed("cart", a="1")
        async with env.reporting(
            intervals=replace(INTERVALS, first_backoff=0.02, stale_after=1)
        ) as reporter:
            await eventually(env.has_sync_status(id_, SyncStatus.SYNCED))
            reads = len(env.plugin.reads)
            env.plugin.errors["cart"] = Unavailable("the cluster does not answer")
            reporter.changed([id_])
            await eventually(lambda: len(env.plugin.reads) > reads + 1)
            assert (await env.sync_state(id_)).status == SyncStatus.SYNCED
            assert env.plane.gate.count("ReportApplicationSyncState") == 1
            state = await eventually(
                env.has_sync_status(id_, SyncStatus.UNKNOWN, "does not answer")
            )
            assert state.short_reason == "the cluster does not answer"
            env.plugin.errors.clear()
            await eventually(env.has_sync_status(id_, SyncStatus.SYNCED))


async def test_a_mistake_and_a_bug_are_reported_with_their_messages(
    open_live_state: OpenLiveState,
) -> None:
    async with open_live_state() as env:
        for name in ("cart", "shop"):
            env.push(name, a="1")
        cart = await env.plane.piped.add_application("cart")
        shop = await env.plane.piped.add_application("shop")
        env.plugin.errors |= {
            "cart": UserMistake("file a is empty", hint="write something into it"),
            "shop": ZeroDivisionError("a bug"),
        }
        async with env.reporting():
            reason = "file a is empty; write something into it"
            await eventually(env.has_sync_status(cart, SyncStatus.INVALID_CONFIG, reason))
            reason = "plugin shelf failed: ZeroDivisionError: a bug"
            await eventually(env.has_sync_status(shop, SyncStatus.UNKNOWN, reason))


async def test_secrets_are_masked_and_not_left_on_disk(open_live_state: OpenLiveState) -> None:
    async with open_live_state() as env:
        env.push("cart", ENCRYPTED, a="{{ .encryptedSecrets.password }}")
        env.write_live("cart", a="by hand", b=SECRET)
        id_ = await env.plane.piped.add_application("cart")
        async with env.reporting(decrypt=lambda _text, _binding: SECRET):
            state = await eventually(env.has_sync_status(id_, SyncStatus.OUT_OF_SYNC))
            snapshot = await eventually(env.has_live_file(id_, "b", "******"))
            assert not (env.working_copies / id_).exists()
            env.plugin.errors["cart"] = UserMistake(f"{SECRET} is not a colour")
            env.write_live("cart", a="again")
            await eventually(
                env.has_sync_status(id_, SyncStatus.INVALID_CONFIG, "****** is not a colour")
            )
            env.plugin.errors.clear()
            env.write_live("cart", a=SECRET)
            (env.target / "cart" / "b").unlink()
            await eventually(env.has_sync_status(id_, SyncStatus.SYNCED))
    assert "+ a: ******" in state.reason
    assert SECRET not in f"{state}{snapshot}"


async def test_a_secret_that_cannot_be_decrypted_is_reported(
    open_live_state: OpenLiveState,
) -> None:
    def refuse(_text: str, _binding: Binding) -> str:
        raise UserMistake("it was encrypted with another key")

    async with open_live_state() as env:
        env.push("cart", ENCRYPTED, a="x")
        id_ = await env.plane.piped.add_application("cart")
        async with env.reporting(decrypt=refuse):
            reason = "failed to decrypt password secret (it was encrypted with another key)"
            await eventually(env.has_sync_status(id_, SyncStatus.INVALID_CONFIG, reason))
            assert not (env.working_copies / id_).exists()


async def test_a_deleted_working_copy_is_created_again(open_live_state: OpenLiveState) -> None:
    async with open_live_state() as env:
        id_ = await env.add_deployed("cart", a="1")
        async with env.reporting() as reporter:
            await eventually(env.has_sync_status(id_, SyncStatus.SYNCED))
            await eventually((env.working_copies / id_).exists)
            shutil.rmtree(env.working_copies)
            env.write_live("cart", a="2")
            reporter.changed([id_])
            await eventually(env.has_sync_status(id_, SyncStatus.OUT_OF_SYNC, "+ a: 1"))


async def test_a_rewritten_history_is_followed(open_live_state: OpenLiveState) -> None:
    async with open_live_state() as env:
        id_ = await env.add_deployed("cart", ENCRYPTED, a="1")
        async with env.reporting(decrypt=lambda _text, _binding: SECRET) as reporter:
            await eventually(env.has_sync_status(id_, SyncStatus.SYNCED))
            # Another commit with the same content, and the old one is pruned.
            old = env.origin.git("rev-parse", "HEAD")
            env.origin.git("commit", "-q", "--amend", "-m", "another")
            commit = env.origin.git("rev-parse", "HEAD")
            (mirror,) = reporter.mirrors
            await eventually(lambda: mirror.head and mirror.head.hash == commit)
            for prune in (["reflog", "expire", "--expire=now", "--all"], ["gc", "--prune=now"]):
                env.origin.git(*prune)
                env.origin.git(f"--git-dir={mirror.clone.directory}", *prune)
            # What git has found a moment ago is not looked up again.
            await eventually(lambda: not mirror.objects.has_just_had(old))
            env.write_live("cart", a="2")
            await eventually(env.has_sync_status(id_, SyncStatus.OUT_OF_SYNC, commit[:7]))


async def test_a_live_state_is_reported_after_an_outage_of_the_control_plane(
    open_live_state: OpenLiveState,
) -> None:
    async with open_live_state() as env:
        id_ = await env.add_deployed("cart", a="1")
        gate = env.plane.gate
        gate.refusals["ReportApplicationLiveState"] = grpc.StatusCode.INTERNAL
        async with env.reporting():
            await eventually(env.has_sync_status(id_, SyncStatus.SYNCED))
            await eventually(lambda: gate.count("ReportApplicationLiveState") > 1)
            assert await env.plane.live_state(id_) is None
            gate.refusals.clear()
            await eventually(env.has_live_file(id_, "a", "1"))
            assert (await env.sync_state(id_)).status == SyncStatus.SYNCED


async def test_a_long_reason_is_truncated(open_live_state: OpenLiveState) -> None:
    async with open_live_state() as env:
        env.push("cart", a="x" * 1_000_000)
        id_ = await env.plane.piped.add_application("cart")
        async with env.reporting():
            state = await eventually(env.has_sync_status(id_, SyncStatus.OUT_OF_SYNC))
    assert len(state.reason) < 70_000
    assert state.reason.endswith("... (the rest is left out)")


async def test_a_dozen_hanging_applications_are_reported_and_recover(
    open_live_state: OpenLiveState,
) -> None:
    async with open_live_state() as env:
        names = [f"app-{number}" for number in range(12)]
        for name in names:
            env.push(name, a="1")
            env.write_live(name, a="1")
        env.plugin.hanging.update(names)
        ids = [await env.plane.piped.add_application(name) for name in names]
        async with env.reporting(plugin_timeout=0.3):
            reason = "did not return the live state"
            for id_ in ids:
                await eventually(env.has_sync_status(id_, SyncStatus.UNKNOWN, reason), 20)
            env.plugin.hanging.clear()
            for id_ in ids:
                await eventually(env.has_sync_status(id_, SyncStatus.SYNCED), 20)
