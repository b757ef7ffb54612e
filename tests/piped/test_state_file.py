# SPDX-License-Identifier: Apache-2.0
"""Damaged files of a workspace are set aside, and files that cannot be written are logged once."""

import asyncio
import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.piped.deploy.journal import Journal, StageEntry
from pipecd.piped.notify import spool as notification_spool
from pipecd.piped.notify.event import EventType, NotificationEvent
from pipecd.piped.notify.spool import Spool, SpoolEntry
from pipecd.piped.plan.rollback import DeploymentOutcome
from pipecd.piped.planning.baseline import IgnoredCommits
from pipecd.piped.pluginhost import stage_logs
from pipecd.piped.pluginhost.masking import LogMasker, SecretMasks
from pipecd.piped.pluginhost.stage_logs import LogSpool, read_spool
from pipecd.piped.state_file import MAX_SET_ASIDE, StateFile
from pipecd.proto.model.logblock_pb2 import LogBlock
from pipecd.proto.model.notification_pb2 import NotificationEventPipedStarted
from pipecd.proto.service.piped_pb2 import ReportStageLogsFromLastCheckpointRequest

DAMAGED, UNWRITABLE, WRITTEN = (
    "file of the workspace is damaged, set aside",
    "file of the workspace cannot be written",
    "file of the workspace is written again",
)

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

SCALARS: st.SearchStrategy[Json] = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["", "STAGE_SUCCESS", "SUCCESS", "2024-01-01T00:00:00", "AAAA", "model.X"])
)
VALUES: st.SearchStrategy[Json] = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)  # fmt: skip


def event(number: int = 0) -> NotificationEvent:
    metadata = NotificationEventPipedStarted(id=f"piped-{number}")
    return NotificationEvent(EventType.PIPED_STARTED, metadata, key=f"key {number}")


def write_journal(path: Path) -> None:
    rest = ReportStageLogsFromLastCheckpointRequest(deployment_id="d", completed=True)
    journal = Journal(StateFile(path, ""), started_at=1_700_000_000)
    outcome = DeploymentOutcome(DeploymentStatus.FAILURE, "it failed", "s1", rolls_back=True)

    async def write() -> None:
        await journal.record_stage("s1", StageEntry(StageStatus.SUCCESS, "done", (rest,)))
        await journal.record_outcome(outcome)

    asyncio.run(write())


def read_journal(path: Path) -> object:
    journal = asyncio.run(Journal.open(path))
    asyncio.run(journal.record_stage("s2", StageEntry(StageStatus.FAILURE, "no")))
    again = asyncio.run(Journal.open(path))
    assert again.stages["s2"] == StageEntry(StageStatus.FAILURE, "no")
    assert again.outcome == journal.outcome
    return (set(journal.stages), journal.outcome)


def write_ignored(path: Path) -> None:
    ignored = IgnoredCommits(path)
    ignored.put("app-1", "deployment-1", "c1")
    ignored.put("app-2", "", "c2")
    asyncio.run(ignored.save({"app-1", "app-2"}))


def read_ignored(path: Path) -> object:
    ignored = IgnoredCommits(path)
    asyncio.run(ignored.load())
    found = (ignored.since("app-1", "deployment-1"), ignored.since("app-2", ""))
    ignored.put("app-3", "d", "c3")
    asyncio.run(ignored.save({"app-1", "app-2", "app-3"}))
    again = IgnoredCommits(path)
    asyncio.run(again.load())
    assert again.since("app-3", "d") == "c3"
    return found


def write_notifications(path: Path) -> None:
    spool = Spool.open(path)
    for number in range(2):
        spool.add(SpoolEntry(event(number), frozenset({"a", "b"})))
    spool.done(spool.pending[0].id, "a")
    spool.close()


def read_notifications(path: Path) -> object:
    spool = Spool.open(path)
    added = SpoolEntry(event(9), frozenset({"a"}))
    spool.add(added)
    spool.close()
    again = Spool.open(path)
    again.close()
    assert again.pending[-1] == added
    assert again.is_duplicate("key 9")
    return {(entry.event.key, entry.receivers) for entry in spool.pending}


FILES: dict[str, tuple[Callable[[Path], None], Callable[[Path], object]]] = {
    "journal.json": (write_journal, read_journal),
    "seen.json": (write_ignored, read_ignored),
    "notifications.jsonl": (write_notifications, read_notifications),
}


def damaged_copies(path: Path) -> list[bytes]:
    return [file.read_bytes() for file in path.parent.glob(f"{path.name}.damaged-*")]


@pytest.mark.parametrize("name", FILES)
@given(VALUES)
@settings(max_examples=150, deadline=None)
def test_a_file_of_any_json_is_set_aside(name: str, value: Json) -> None:
    _, read = FILES[name]
    with TemporaryDirectory() as directory:
        path = Path(directory) / name
        content = json.dumps(value).encode()
        path.write_bytes(content)
        with capture_logs() as logs:
            read(path)
        is_damaged = bool(damaged_copies(path))
        assert damaged_copies(path) == ([content] if is_damaged else [])
        assert is_damaged == (DAMAGED in [entry["event"] for entry in logs])
        # An empty object has the shape of a file of ignored commits.
        assert is_damaged or (name == "seen.json" and isinstance(value, dict))


@st.composite
def replacements(draw: st.DrawFn) -> Callable[[Json], Json]:
    """Replaces one value at any depth of a document."""

    def replace(value: Json) -> Json:
        if isinstance(value, dict) and value and draw(st.integers(0, 3)):
            key = draw(st.sampled_from(sorted(value)))
            if draw(st.integers(0, 5)) == 0:
                return {k: v for k, v in value.items() if k != key}
            return {**value, key: replace(value[key])}
        if isinstance(value, list) and value and draw(st.integers(0, 3)):
            at = draw(st.integers(0, len(value) - 1))
            return [*value[:at], replace(value[at]), *value[at + 1 :]]
        return draw(VALUES)

    return replace


@pytest.mark.parametrize("name", FILES)
@given(replacements(), st.integers(0, 10))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_file_with_one_wrong_value_at_any_depth_is_read_or_set_aside(
    name: str, replace: Callable[[Json], Json], line: int
) -> None:
    write, read = FILES[name]
    with TemporaryDirectory() as directory:
        path = Path(directory) / name
        write(path)
        lines = path.read_bytes().splitlines()
        number = line % len(lines)
        lines[number] = json.dumps(replace(json.loads(lines[number]))).encode()
        content = b"\n".join(lines) + b"\n"
        path.write_bytes(content)
        read(path)
        assert damaged_copies(path) in ([], [content])


@pytest.mark.parametrize("name", FILES)
@given(st.binary(max_size=40))
@settings(max_examples=50, deadline=None)
def test_a_file_of_any_bytes_does_not_stop_piped(name: str, content: bytes) -> None:
    with TemporaryDirectory() as directory:
        path = Path(directory) / name
        path.write_bytes(content)
        FILES[name][1](path)


@pytest.mark.parametrize("name", FILES)
def test_an_undamaged_file_is_read(name: str, tmp_path: Path) -> None:
    write, read = FILES[name]
    write(tmp_path / name)
    with capture_logs() as logs:
        found = read(tmp_path / name)
    assert logs == []
    assert (
        found
        == {
            "journal.json": (
                {"s1", "s2"},
                DeploymentOutcome(DeploymentStatus.FAILURE, "it failed", "s1", rolls_back=True),
            ),
            "seen.json": ("c1", "c2"),
            "notifications.jsonl": {
                ("key 0", frozenset({"b"})),
                ("key 1", frozenset({"a", "b"})),
                ("key 9", frozenset({"a"})),
            },
        }[name]
    )


@pytest.mark.parametrize("name", FILES)
def test_a_directory_in_place_of_a_file_is_set_aside(name: str, tmp_path: Path) -> None:
    (tmp_path / name / "inner").mkdir(parents=True)
    FILES[name][1](tmp_path / name)
    assert (tmp_path / f"{name}.damaged-1" / "inner").is_dir()
    assert (tmp_path / name).is_file()


def test_valid_lines_of_a_damaged_notification_spool_are_delivered(tmp_path: Path) -> None:
    path = tmp_path / "notifications.jsonl"
    write_notifications(path)
    content = path.read_bytes().replace(b'{"gone"', b'["gone"', 1) + b'{"keys": 5}\n'
    path.write_bytes(content)
    spool = Spool.open(path)
    spool.close()
    assert [entry.event.key for entry in spool.pending] == ["key 0", "key 1"]
    assert damaged_copies(path) == [content]


def test_valid_lines_of_a_damaged_stage_log_are_sent(tmp_path: Path) -> None:
    path = tmp_path / "stage"
    log = LogSpool(path, LogMasker(SecretMasks(), "d"))
    for index in range(3):
        log.add(LogBlock(index=index, log="line\n"))
    first, _, last = path.read_bytes().splitlines()
    content = b"\n".join([first, b"[1, 2]", last, b"half of a li"])
    path.write_bytes(content)
    assert [block.index for block in read_spool(path)] == [0, 2]
    assert damaged_copies(path) == [content]
    assert not path.exists()


@given(st.binary(max_size=60) | VALUES.map(lambda value: json.dumps(value).encode() + b"\n"))
@settings(max_examples=100, deadline=None)
def test_a_stage_log_of_any_bytes_does_not_stop_piped(content: bytes) -> None:
    with TemporaryDirectory() as directory:
        path = Path(directory) / "stage"
        path.write_bytes(content)
        read_spool(path)
        assert damaged_copies(path) in ([], [content])


def test_a_limited_number_of_damaged_files_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "seen.json"
    for number in range(MAX_SET_ASIDE + 5):
        path.write_text(f"[{number}]")
        read_ignored(path)
    assert len(damaged_copies(path)) == MAX_SET_ASIDE
    assert (tmp_path / f"seen.json.damaged-{MAX_SET_ASIDE}").read_text() == "[14]"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for 256 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)]
    if os.getuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root may mount a file system")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def fill(disk: Path) -> Path:
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            return ballast


def messages(logs: Sequence[Mapping[str, object]]) -> list[object]:
    return [entry["event"] for entry in logs]


async def test_a_full_disk_is_logged_once_and_the_journal_is_written_again(
    small_disk: Path,
) -> None:
    journal = await Journal.open(small_disk / "journal.json")
    ballast = fill(small_disk)
    with capture_logs() as logs:
        for number in range(3):
            await journal.record_stage(f"s{number}", StageEntry(StageStatus.SUCCESS, ""))
        ballast.unlink()
        await journal.record_stage("s3", StageEntry(StageStatus.SUCCESS, ""))
    assert messages(logs) == [UNWRITABLE, WRITTEN]
    assert logs[0]["error"] == "No space left on device"
    assert len((await Journal.open(small_disk / "journal.json")).stages) == 4


async def test_notifications_of_a_full_disk_are_persisted_once_there_is_space(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notification_spool, "_RETRY_AFTER", 0.05)
    path = small_disk / "notifications.jsonl"
    spool = Spool.open(path)
    syncing = asyncio.create_task(spool.run())
    ballast = fill(small_disk)
    with capture_logs() as logs:
        for number in range(200):
            spool.add(SpoolEntry(event(number), frozenset({"a"})))
        await asyncio.sleep(0.3)
        ballast.unlink()
        # Without any further notification.
        async with asyncio.timeout(5):
            while WRITTEN not in messages(logs):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        spool.add(SpoolEntry(event(200), frozenset({"a"})))
    syncing.cancel()
    spool.close()
    assert messages(logs) == [UNWRITABLE, WRITTEN]
    again = Spool.open(path)
    again.close()
    assert [entry.event.key for entry in again.pending] == [f"key {n}" for n in range(201)]
    assert damaged_copies(path) == []


async def test_a_removed_notification_spool_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "notifications.jsonl"
    spool = Spool.open(path)
    syncing = asyncio.create_task(spool.run())
    spool.add(SpoolEntry(event(0), frozenset({"a"})))
    path.unlink()
    spool.add(SpoolEntry(event(1), frozenset({"a"})))
    async with asyncio.timeout(5):
        while not path.exists():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    spool.add(SpoolEntry(event(2), frozenset({"a"})))
    syncing.cancel()
    spool.close()
    again = Spool.open(path)
    again.close()
    assert [entry.event.key for entry in again.pending] == ["key 0", "key 1", "key 2"]


def test_a_stage_log_on_a_full_disk_is_spooled_once_there_is_space(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage_logs, "_RETRY_AFTER", 0.0)
    path = small_disk / "stage"
    spool = LogSpool(path, LogMasker(SecretMasks(), "d"))
    ballast = fill(small_disk)
    with capture_logs() as logs:
        for index in range(3):
            spool.add(LogBlock(index=index, log="line\n" * 2000))
        ballast.unlink()
        spool.add(LogBlock(index=3, log="line\n"))
    assert messages(logs) == [UNWRITABLE, WRITTEN]
    assert [block.index for block in read_spool(path)] == [0, 1, 2, 3]


async def test_ignored_commits_are_saved_once_there_is_space(small_disk: Path) -> None:
    ignored = IgnoredCommits(small_disk / "trigger" / "seen.json")
    ballast = fill(small_disk)
    ignored.put("app", "d", "c" * 5000)
    with capture_logs() as logs:
        for _ in range(3):
            await ignored.save({"app"})
        ballast.unlink()
        await ignored.save({"app"})
    assert messages(logs) == [UNWRITABLE, WRITTEN]
    again = IgnoredCommits(small_disk / "trigger" / "seen.json")
    await again.load()
    assert again.since("app", "d") == "c" * 5000
