# SPDX-License-Identifier: Apache-2.0
"""OutageLog with one application ends in a state with a reason, and touches no other."""

import shutil
from dataclasses import replace
from typing import Any

import grpc

from pipecd.model.application import SyncStatus
from pipecd.model.errors import Unavailable, UserMistake
from servers.polling import eventually

SECRET = "hunter2-hunter2"
ENCRYPTED = """\
  encryption:
    encryptedSecrets: {password: "SECRET"}
    decryptionTargets: [files/a]
"""


async def test_a_platform_that_hangs_holds_up_no_other_application(open_scene: Any) -> None:
    async with open_scene() as scene:
        ids = {}
        for name in ("cart", "shop"):
            ids[name] = await scene.deployed(name, a="1")
        scene.shelf.silent.add("cart")
        async with scene.reporting(plugin_timeout=0.3):
            await eventually(scene.is_in(ids["shop"], SyncStatus.SYNCED))
            why = "plugin shelf did not return the live state within 0.3s"
            await eventually(scene.is_in(ids["cart"], SyncStatus.UNKNOWN, why))
            scene.shelf.silent.clear()
            await eventually(scene.is_in(ids["cart"], SyncStatus.SYNCED))


async def test_a_short_trouble_is_not_told_and_a_long_one_is(open_scene: Any) -> None:
    async with open_scene() as scene:
        id_ = await scene.deployed("cart", a="1")
        async with scene.reporting(
            intervals=replace(scene.intervals, first_backoff=0.02, stale_after=1)
        ) as reporter:
            await eventually(scene.is_in(id_, SyncStatus.SYNCED))
            looks = len(scene.shelf.looks)
            scene.shelf.broken["cart"] = Unavailable("the cluster does not answer")
            reporter.changed([id_])
            await eventually(lambda: len(scene.shelf.looks) > looks + 1)
            assert (await scene.state(id_)).status == SyncStatus.SYNCED
            assert scene.plane.gate.count("ReportApplicationSyncState") == 1
            state = await eventually(scene.is_in(id_, SyncStatus.UNKNOWN, "does not answer"))
            assert state.short_reason == "the cluster does not answer"
            scene.shelf.broken.clear()
            await eventually(scene.is_in(id_, SyncStatus.SYNCED))


async def test_a_mistake_and_a_bug_are_told_with_their_words(open_scene: Any) -> None:
    async with open_scene() as scene:
        for name in ("cart", "shop"):
            scene.push(name, a="1")
        cart = await scene.plane.piped.add_application("cart")
        shop = await scene.plane.piped.add_application("shop")
        scene.shelf.broken |= {
            "cart": UserMistake("file a is empty", hint="write something into it"),
            "shop": ZeroDivisionError("a bug"),
        }
        async with scene.reporting():
            words = "file a is empty; write something into it"
            await eventually(scene.is_in(cart, SyncStatus.INVALID_CONFIG, words))
            words = "plugin shelf failed: ZeroDivisionError: a bug"
            await eventually(scene.is_in(shop, SyncStatus.UNKNOWN, words))


async def test_a_secret_is_shown_nowhere_and_stays_nowhere(open_scene: Any) -> None:
    async with open_scene() as scene:
        scene.push("cart", ENCRYPTED, a="{{ .encryptedSecrets.password }}")
        scene.put("cart", a="by hand", b=SECRET)
        id_ = await scene.plane.piped.add_application("cart")
        async with scene.reporting(decrypt=lambda _: SECRET):
            state = await eventually(scene.is_in(id_, SyncStatus.OUT_OF_SYNC))
            snapshot = await eventually(scene.has_file(id_, "b", "******"))
            assert not (scene.copies / id_).exists()
            scene.shelf.broken["cart"] = UserMistake(f"{SECRET} is not a colour")
            scene.put("cart", a="again")
            await eventually(scene.is_in(id_, SyncStatus.INVALID_CONFIG, "****** is not a colour"))
            scene.shelf.broken.clear()
            scene.put("cart", a=SECRET)
            (scene.directory / "shelf" / "cart" / "b").unlink()
            await eventually(scene.is_in(id_, SyncStatus.SYNCED))
    assert "+ a: ******" in state.reason
    assert SECRET not in f"{state}{snapshot}"


async def test_a_secret_that_cannot_be_decrypted_is_told(open_scene: Any) -> None:
    def refuse(_: str) -> str:
        raise UserMistake("it was encrypted with another key")

    async with open_scene() as scene:
        scene.push("cart", ENCRYPTED, a="x")
        id_ = await scene.plane.piped.add_application("cart")
        async with scene.reporting(decrypt=refuse):
            words = "failed to decrypt password secret (it was encrypted with another key)"
            await eventually(scene.is_in(id_, SyncStatus.INVALID_CONFIG, words))
            assert not (scene.copies / id_).exists()


async def test_a_working_copy_that_vanished_is_made_again(open_scene: Any) -> None:
    async with open_scene() as scene:
        id_ = await scene.deployed("cart", a="1")
        async with scene.reporting() as reporter:
            await eventually(scene.is_in(id_, SyncStatus.SYNCED))
            await eventually((scene.copies / id_).exists)
            shutil.rmtree(scene.copies)
            scene.put("cart", a="2")
            reporter.changed([id_])
            await eventually(scene.is_in(id_, SyncStatus.OUT_OF_SYNC, "+ a: 1"))


async def test_a_history_that_was_rewritten_is_followed(open_scene: Any) -> None:
    async with open_scene() as scene:
        id_ = await scene.deployed("cart", ENCRYPTED, a="1")
        async with scene.reporting(decrypt=lambda _: SECRET) as reporter:
            await eventually(scene.is_in(id_, SyncStatus.SYNCED))
            # Another commit with the same content, and the old one is nowhere any more.
            scene.origin.git("commit", "-q", "--amend", "-m", "another")
            commit = scene.origin.git("rev-parse", "HEAD")
            (mirror,) = reporter.mirrors
            await eventually(lambda: mirror.head and mirror.head.hash == commit)
            for prune in (["reflog", "expire", "--expire=now", "--all"], ["gc", "--prune=now"]):
                scene.origin.git(*prune)
                scene.origin.git(f"--git-dir={mirror.clone.directory}", *prune)
            scene.put("cart", a="2")
            await eventually(scene.is_in(id_, SyncStatus.OUT_OF_SYNC, commit[:7]))


async def test_a_control_plane_that_is_away_gets_what_it_missed(open_scene: Any) -> None:
    async with open_scene() as scene:
        id_ = await scene.deployed("cart", a="1")
        gate = scene.plane.gate
        gate.refusals["ReportApplicationLiveState"] = grpc.StatusCode.INTERNAL
        async with scene.reporting():
            await eventually(scene.is_in(id_, SyncStatus.SYNCED))
            await eventually(lambda: gate.count("ReportApplicationLiveState") > 1)
            assert await scene.snapshot(id_) is None
            gate.refusals.clear()
            await eventually(scene.has_file(id_, "a", "1"))
            assert (await scene.state(id_)).status == SyncStatus.SYNCED


async def test_an_endless_reason_is_cut(open_scene: Any) -> None:
    async with open_scene() as scene:
        scene.push("cart", a="x" * 1_000_000)
        id_ = await scene.plane.piped.add_application("cart")
        async with scene.reporting():
            state = await eventually(scene.is_in(id_, SyncStatus.OUT_OF_SYNC))
    assert len(state.reason) < 70_000
    assert state.reason.endswith("... (the rest is left out)")


async def test_a_dozen_applications_that_hang_are_all_told_and_come_back(open_scene: Any) -> None:
    async with open_scene() as scene:
        names = [f"app-{number}" for number in range(12)]
        for name in names:
            scene.push(name, a="1")
            scene.put(name, a="1")
        scene.shelf.silent.update(names)
        ids = [await scene.plane.piped.add_application(name) for name in names]
        async with scene.reporting(plugin_timeout=0.3):
            why = "did not return the live state"
            for id_ in ids:
                await eventually(scene.is_in(id_, SyncStatus.UNKNOWN, why), 20)
            scene.shelf.silent.clear()
            for id_ in ids:
                await eventually(scene.is_in(id_, SyncStatus.SYNCED), 20)
