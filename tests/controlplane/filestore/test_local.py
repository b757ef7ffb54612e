# SPDX-License-Identifier: Apache-2.0
"""Objects in a local directory are written atomically and never outside of it."""

import asyncio
import gc
import sys
import threading
from pathlib import Path

import pytest

from pipecd.config.controlplane import FilestoreConfig, FilestoreSpec
from pipecd.controlplane.filestore import local
from pipecd.controlplane.filestore.local import LocalFiles
from pipecd.controlplane.filestore.open import open_filestore
from pipecd.model.errors import Conflict, NotFound, UserMistake


@pytest.fixture
async def files(tmp_path: Path) -> LocalFiles:
    return await LocalFiles.open(tmp_path / "files")


async def test_an_object_is_read_back_and_replaced_as_a_whole(files: LocalFiles) -> None:
    await files.put("log/d/s/0.txt", b"first and longer")
    await files.put("log/d/s/0.txt", b"\xff\x00x")
    assert await files.get("log/d/s/0.txt") == b"\xff\x00x"


async def test_a_missing_object_is_not_found(files: LocalFiles) -> None:
    await files.put("log/d", b"")
    for path in ("missing", "log", "log/d/below-a-file", "log/missing/x"):
        with pytest.raises(NotFound, match=path):
            await files.get(path)


async def test_a_deleted_object_is_gone_and_a_missing_one_no_error(files: LocalFiles) -> None:
    await files.put("a/b", b"x")
    await files.delete("a/b")
    for path in ("a/b", "a", "a/b/c", "never"):
        await files.delete(path)
    assert await files.list("") == ()


@pytest.mark.parametrize(
    ("prefix", "paths"),
    [
        pytest.param("", ("a/b/c.json", "a/b/d.json", "a/bc.json", "z"), id="everything"),
        pytest.param("a/", ("a/b/c.json", "a/b/d.json", "a/bc.json"), id="a directory"),
        pytest.param("a/b", ("a/b/c.json", "a/b/d.json", "a/bc.json"), id="the start of a name"),
        pytest.param("a/b/", ("a/b/c.json", "a/b/d.json"), id="a deeper directory"),
        pytest.param("a/b/c.json", ("a/b/c.json",), id="a whole path"),
        pytest.param("a/x/", (), id="a directory that is not there"),
        pytest.param("y", (), id="a name that is not there"),
    ],
)
async def test_paths_are_listed_by_prefix(
    files: LocalFiles, prefix: str, paths: tuple[str, ...]
) -> None:
    for path in ("z", "a/bc.json", "a/b/d.json", "a/b/c.json"):
        await files.put(path, b"")
    assert await files.list(prefix) == paths


@pytest.mark.parametrize(
    "path",
    [
        pytest.param("../outside", id="up"),
        pytest.param("a/../../outside", id="up from below"),
        pytest.param("/etc/passwd", id="absolute"),
        pytest.param("a//b", id="an empty part"),
        pytest.param("a/./b", id="a dot"),
        pytest.param("a/", id="a directory"),
        pytest.param("", id="nothing"),
        pytest.param("a\0b", id="a zero byte"),
        pytest.param(".incoming/x", id="the place of unfinished objects"),
    ],
)
async def test_a_path_outside_the_directory_is_rejected(files: LocalFiles, path: str) -> None:
    with pytest.raises(UserMistake):
        await files.put(path, b"x")
    with pytest.raises(UserMistake):
        await files.get(path)
    with pytest.raises(UserMistake):
        await files.delete(path)


async def test_a_prefix_outside_the_directory_is_rejected(files: LocalFiles) -> None:
    with pytest.raises(UserMistake):
        await files.list("../")


async def test_a_path_cannot_be_an_object_and_a_directory(files: LocalFiles) -> None:
    await files.put("a", b"")
    with pytest.raises(Conflict):
        await files.put("a/b", b"")
    await files.put("c/d", b"")
    with pytest.raises(Conflict):
        await files.put("c", b"")
    assert await files.list("") == ("a", "c/d")


async def test_a_reader_sees_the_old_or_the_new_object(files: LocalFiles) -> None:
    contents = [bytes([i]) * 100_000 for i in range(20)]
    await files.put("x", contents[0])

    async def write() -> None:
        for content in contents:
            await files.put("x", content)

    async with asyncio.TaskGroup() as group:
        writing = group.create_task(write())
        while not writing.done():
            assert await files.get("x") in contents


async def test_a_cancelled_write_has_ended_when_its_caller_continues(
    files: LocalFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, go_on = threading.Event(), threading.Event()
    replace = Path.replace

    def slow(self: Path, target: Path) -> Path:
        began.set()
        go_on.wait(10)
        return replace(self, target)

    monkeypatch.setattr(local.Path, "replace", slow)
    writing = asyncio.create_task(files.put("x", b"old"))
    await asyncio.to_thread(began.wait, 10)
    writing.cancel()
    await asyncio.sleep(0.01)
    assert not writing.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await writing
    await files.put("x", b"new")
    assert await files.get("x") == b"new"


async def test_incomplete_objects_of_a_killed_process_are_deleted(tmp_path: Path) -> None:
    program = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from pipecd.controlplane.filestore.local import LocalFiles\n"
        "async def main():\n"
        "    files = await LocalFiles.open(Path(sys.argv[1]))\n"
        "    for i in range(10**6):\n"
        "        await files.put('x', b'%09d' % i * 50_000)\n"
        "        print(i, flush=True)\n"
        "asyncio.run(main())\n"
    )
    writer = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    assert writer.stdout is not None
    for _ in range(5):
        await writer.stdout.readline()
    writer.kill()
    await writer.communicate()
    files = await LocalFiles.open(tmp_path)
    content = await files.get("x")
    assert content == content[:9] * 50_000
    assert await files.list("") == ("x",)
    assert list((tmp_path / ".incoming").iterdir()) == []


async def test_objects_are_for_their_owner_only(files: LocalFiles, tmp_path: Path) -> None:
    await files.put("a/b", b"x")
    assert (tmp_path / "files" / "a" / "b").stat().st_mode & 0o077 == 0
    assert (tmp_path / "files").stat().st_mode & 0o077 == 0


async def test_a_directory_that_is_not_writable_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserMistake, match=r"cannot be created or written: .*choose another path"):
        await LocalFiles.open(tmp_path / "file" / "files")


async def test_the_configuration_chooses_the_filestore(tmp_path: Path) -> None:
    spec = FilestoreSpec(type="LOCAL", config=FilestoreConfig(path=str(tmp_path / "files")))
    async with open_filestore(spec) as files:
        await files.put("a", b"x")
    assert (tmp_path / "files" / "a").read_bytes() == b"x"


async def test_reads_run_outside_the_event_loop(files: LocalFiles) -> None:
    used: set[int] = set()
    original = Path.read_bytes

    def recorded(self: Path) -> bytes:
        used.add(threading.get_ident())
        return original(self)

    await files.put("x", b"y")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "read_bytes", recorded)
        await asyncio.gather(*(files.get("x") for _ in range(10)))
    assert used
    assert threading.get_ident() not in used


async def test_a_cancelled_read_leaves_no_unhandled_exception(tmp_path: Path) -> None:
    files = await LocalFiles.open(tmp_path)
    unhandled: list[dict[str, object]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: unhandled.append(context))
    try:
        reading = asyncio.ensure_future(files.get("log/nothing.txt"))
        await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        del reading
        gc.collect()
        await asyncio.sleep(0)
    finally:
        loop.set_exception_handler(None)
    assert unhandled == []
