# SPDX-License-Identifier: Apache-2.0
"""The baseline of an application after kills, lost files, late polls and clock changes."""

import json
from pathlib import Path

import pytest

from pipecd.piped.planning.baseline import Baselines, IgnoredCommits
from pipecd.proto.model.application_pb2 import Application, ApplicationDeploymentReference
from pipecd.proto.model.deployment_pb2 import Commit, Deployment, DeploymentTrigger


def trigger(commit: str, at: int, written: int = 1) -> DeploymentTrigger:
    return DeploymentTrigger(commit=Commit(hash=commit, created_at=written), timestamp=at)


def application(deployment: str = "", commit: str = "", at: int = 0) -> Application:
    cart = Application(id="cart")
    if deployment:
        reference = ApplicationDeploymentReference(
            deployment_id=deployment, trigger=trigger(commit, at)
        )
        cart.most_recently_triggered_deployment.CopyFrom(reference)
    return cart


def deployment(id_: str, commit: str, at: int, written: int = 1) -> Deployment:
    return Deployment(id=id_, application_id="cart", trigger=trigger(commit, at, written))


@pytest.fixture
def seen(tmp_path: Path) -> IgnoredCommits:
    return IgnoredCommits(tmp_path / "trigger" / "seen.json")


@pytest.fixture
def baselines(seen: IgnoredCommits) -> Baselines:
    return Baselines(seen)


def test_an_application_that_was_never_deployed_has_no_baseline(baselines: Baselines) -> None:
    assert baselines.of(application()).commit == ""


def test_a_local_deployment_counts_before_the_control_plane_lists_it(baselines: Baselines) -> None:
    stored = application("d0", "c0", 100)
    baselines.record(stored, deployment("d1", "c1", 101))
    assert baselines.of(stored).deployment_id == "d1"


def test_a_clock_that_was_set_back_hides_no_deployment(baselines: Baselines) -> None:
    stored = application("d0", "c0", 5000)
    baselines.record(stored, deployment("d1", "c1", 100))
    assert baselines.of(stored).deployment_id == "d1"
    baselines.record(stored, deployment("d2", "c2", 90))
    assert baselines.of(stored).deployment_id == "d2"


def test_a_later_deployment_of_another_process_counts(baselines: Baselines) -> None:
    baselines.record(application("d0", "c0", 100), deployment("d1", "c1", 101))
    assert baselines.of(application("d9", "c9", 200)).deployment_id == "d9"


def test_an_earlier_local_deployment_does_not_replace_the_last_one(baselines: Baselines) -> None:
    stored = application("d0", "c0", 100)
    baselines.record(stored, deployment("d1", "c1", 101))
    baselines.record(stored, deployment("d2", "c2", 50))
    # The report of the last one has not reached the control plane yet.
    assert baselines.of(application("d1", "c1", 101)).deployment_id == "d2"
    assert not baselines.adopt(stored, deployment("d1", "c1", 101))


def test_an_older_deployment_is_not_adopted(baselines: Baselines) -> None:
    stored = application("d1", "c1", 101)
    assert not baselines.adopt(stored, deployment("d0", "c0", 100))
    assert not baselines.adopt(stored, deployment("d1", "c1", 101))
    assert baselines.of(stored).deployment_id == "d1"


def test_a_deployment_that_follows_the_last_one_is_later_whatever_the_clock(
    baselines: Baselines,
) -> None:
    stored = application("d0", "c0", 5000)
    assert baselines.adopt(stored, deployment("d1", "c1", 100), after="d0")
    assert baselines.of(stored).deployment_id == "d1"


def test_an_ignored_commit_counts_until_the_next_deployment(baselines: Baselines) -> None:
    stored = application("d0", "c0", 100)
    baselines.ignore(stored, "c1")
    assert (baselines.of(stored).commit, baselines.of(stored).deployment_id) == ("c1", "d0")
    baselines.record(stored, deployment("d2", "c2", 101))
    assert baselines.of(stored).commit == "c2"


async def test_ignored_commits_survive_a_restart(seen: IgnoredCommits, tmp_path: Path) -> None:
    Baselines(seen).ignore(application("d0", "c0", 100), "c1")
    await seen.save({"cart"})
    later = IgnoredCommits(tmp_path / "trigger" / "seen.json")
    await later.load()
    assert Baselines(later).of(application("d0", "c0", 100)).commit == "c1"
    assert Baselines(later).of(application("d2", "c2", 101)).commit == "c2"


async def test_ignored_commits_of_deleted_applications_are_removed(
    seen: IgnoredCommits, tmp_path: Path
) -> None:
    seen.put("cart", "d0", "c1")
    seen.put("shop", "d0", "c1")
    await seen.save({"shop"})
    assert json.loads((tmp_path / "trigger" / "seen.json").read_text()) == {"shop": ["d0", "c1"]}


@pytest.mark.parametrize("content", ["", "{", "[]", '{"cart": 1}', '{"cart": ["a"]}', "\xff"])
async def test_an_invalid_file_is_ignored(
    seen: IgnoredCommits, tmp_path: Path, content: str
) -> None:
    (tmp_path / "trigger").mkdir()
    (tmp_path / "trigger" / "seen.json").write_bytes(content.encode("latin-1"))
    await seen.load()
    assert seen.since("cart", "") == ""
    seen.put("cart", "", "c1")
    await seen.save({"cart"})
    assert "c1" in (tmp_path / "trigger" / "seen.json").read_text()


async def test_a_disk_that_cannot_be_written_does_not_stop_the_trigger(tmp_path: Path) -> None:
    (tmp_path / "trigger").write_text("a file where a directory should be")
    seen = IgnoredCommits(tmp_path / "trigger" / "seen.json")
    await seen.load()
    seen.put("cart", "d0", "c1")
    await seen.save({"cart"})
    assert seen.since("cart", "d0") == "c1"
