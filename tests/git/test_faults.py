# SPDX-License-Identifier: Apache-2.0
"""A mirror recovers from damaged files, killed processes, full disks and rewritten branches."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pipecd.git.checkout import SharedCheckouts
from pipecd.git.credentials import GitCredentials
from pipecd.git.mirror import Repository, open_mirrors
from pipecd.git.objects import Blob
from pipecd.model.errors import NotFound, PipecdError, Unavailable
from pipecd.program.run import Captured
from servers.origin import OpenMirror, Origin


async def written(mirror: Any, commit: str, into: Path) -> list[str]:
    await asyncio.to_thread(into.mkdir)
    await mirror.checkout.write(commit, into)
    return sorted(path.name for path in await asyncio.to_thread(lambda: list(into.iterdir())))


async def test_a_commit_removed_from_the_remote_stays_usable(
    open_mirror: OpenMirror, origin: Origin, tmp_path: Path
) -> None:
    old = origin.commit({"a": "1"})
    async with open_mirror(origin.remote) as mirror:
        await mirror.update()
        origin.git("reset", "-q", "--hard", "HEAD^")
        new = origin.commit({"b": "1"})
        origin.git("reflog", "expire", "--expire=now", "--all")
        origin.git("gc", "-q", "--prune=now")
        assert (await mirror.update()).hash == new
        await mirror.clone.ensure_commit(old)
        assert await written(mirror, old, tmp_path / "w") == ["README", "a"]
        shutil.rmtree(origin.path)
        await mirror.clone.ensure_commit(old)


async def test_an_outage_while_a_commit_is_fetched_does_not_make_it_missing(
    open_mirror: OpenMirror, origin: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_mirror(origin.remote) as mirror:
        await mirror.update()
        fetch = mirror.clone.try_fetch

        async def fetch_before_the_outage(refspec: str) -> Captured:
            done = await fetch(refspec)
            if origin.path.exists():
                origin.path.rename(origin.path.with_name("away"))
            return done

        monkeypatch.setattr(mirror.clone, "try_fetch", fetch_before_the_outage)
        with pytest.raises(PipecdError, match="the repository was not found") as caught:
            await mirror.clone.ensure_commit("1" * 40)
        assert not isinstance(caught.value, NotFound)


async def test_repacking_deletes_no_object(
    open_mirror: OpenMirror, origin: Origin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipecd.git.clone._REPACK_AFTER_FETCHES", 3)
    async with open_mirror(origin.remote) as mirror:
        commits: list[str] = []
        for i in range(6):
            commits.append(origin.commit({f"file-{i}": str(i)}))
            await mirror.update()
            await mirror.clone.repack_if_due()
            origin.git("reset", "-q", "--hard", "HEAD^")
        for i, commit in enumerate(commits):
            assert await mirror.objects.read_file(commit, f"file-{i}") == str(i).encode()
        packs = list((mirror.clone.directory / "objects" / "pack").glob("*.pack"))
        assert 0 < len(packs) < 6


@pytest.mark.parametrize("how", ["empty", "garbage", "gone"])
async def test_a_checkout_recovers_from_a_corrupt_object(
    open_mirror: OpenMirror, origin: Origin, tmp_path: Path, how: str
) -> None:
    head = origin.commit({"a": "content of a"})
    blob = origin.git("rev-parse", "HEAD:a")
    async with open_mirror(origin.remote) as mirror:
        await mirror.update()
        break_object(mirror.clone.directory, blob, how)
        names = await asyncio.gather(*(written(mirror, head, tmp_path / f"w{i}") for i in range(9)))
    assert names == [["README", "a"]] * 9
    assert (tmp_path / "w2" / "a").read_text() == "content of a"


@pytest.mark.parametrize("how", ["empty", "garbage", "gone"])
async def test_the_next_update_recovers_from_a_corrupt_object(
    open_mirror: OpenMirror, origin: Origin, how: str
) -> None:
    head = origin.commit({"a": "content of a"})
    blob = origin.git("rev-parse", "HEAD:a")
    async with open_mirror(origin.remote) as mirror:
        await mirror.update()
        place = (await mirror.objects.locate(head, ["a"]))["a"]
        assert isinstance(place, Blob)
        break_object(mirror.clone.directory, blob, how)
        with pytest.raises(Unavailable):
            await mirror.objects.read([place])
        assert (await mirror.update()).hash == head
        assert await mirror.objects.read_file(head, "a") == b"content of a"


async def test_a_large_fetch_recovers_from_a_corrupt_object_that_it_contains(
    open_mirror: OpenMirror, origin: Origin
) -> None:
    origin.commit({"a": "content of a"})
    blob = origin.git("rev-parse", "HEAD:a")
    async with open_mirror(origin.remote) as mirror:
        await mirror.update()
        break_object(mirror.clone.directory, blob, "garbage")
        # A new history is fetched as a pack, which git compares with the objects that it has.
        origin.git("checkout", "-q", "--orphan", "other")
        head = origin.commit({f"file-{i}": str(i) for i in range(150)})
        origin.git("branch", "-M", "main")
        assert (await mirror.update()).hash == head
        assert await mirror.objects.read_file(head, "a") == b"content of a"


async def test_an_unreadable_directory_is_not_taken_for_an_empty_one(
    open_mirror: OpenMirror, origin: Origin
) -> None:
    head = origin.commit({"app/a": "1"})
    async with open_mirror(origin.remote) as mirror:
        await mirror.update()
        with pytest.raises(Unavailable, match="could not read the directory"):
            await mirror.objects.entry("f" * 40, "app/a")
        break_object(mirror.clone.directory, origin.git("rev-parse", "HEAD:app"), "gone")
        with pytest.raises(Unavailable, match="could not read the directory"):
            await mirror.objects.entry(head, "app/a")
        await mirror.update()
        assert await mirror.objects.entry(head, "app/a") is not None


def remove_objects(directory: Path) -> None:
    shutil.rmtree(directory / "objects")
    (directory / "objects").mkdir()


DAMAGE: dict[str, Callable[[Path], object]] = {
    "directory removed": shutil.rmtree,
    "directory emptied": lambda directory: (shutil.rmtree(directory), directory.mkdir()),
    "config is garbage": lambda directory: (directory / "config").write_bytes(b"\0 [[[\n"),
    "config is empty": lambda directory: (directory / "config").write_bytes(b""),
    "config removed": lambda directory: (directory / "config").unlink(),
    "HEAD is garbage": lambda directory: (directory / "HEAD").write_bytes(b"\0 [[[\n"),
    "HEAD removed": lambda directory: (directory / "HEAD").unlink(),
    "objects removed": lambda directory: shutil.rmtree(directory / "objects"),
    "objects emptied": remove_objects,
    "refs removed": lambda directory: shutil.rmtree(directory / "refs"),
    "ref is garbage": lambda directory: (directory / "refs/heads/main").write_bytes(b"\0 [[[\n"),
    "all mirrors removed": lambda directory: shutil.rmtree(directory.parent),
    "settings of git are garbage": lambda directory: (
        directory.parent / "private" / "gitconfig"
    ).write_bytes(b"\0 [[[\n"),
    "packed refs are garbage": lambda directory: (directory / "packed-refs").write_bytes(b"[[["),
}


@pytest.mark.parametrize("damage", DAMAGE)
async def test_a_damaged_clone_is_created_again_before_the_next_push_is_read(
    open_mirror: OpenMirror, origin: Origin, tmp_path: Path, damage: str
) -> None:
    async with open_mirror(origin.remote) as mirror:
        first = await mirror.update()
        assert await mirror.objects.read_file(first.hash, "README") == b"hello\n"
        DAMAGE[damage](mirror.clone.directory)
        head = origin.commit({"a": "1"})
        assert (await mirror.update()).hash == head
        assert await mirror.objects.read_file(head, "a") == b"1"
        assert await written(mirror, head, tmp_path / "w") == ["README", "a"]
        assert await written(mirror, first.hash, tmp_path / "w1") == ["README"]


@pytest.mark.parametrize("damage", DAMAGE)
async def test_a_damaged_clone_is_created_again_without_a_push(
    open_mirror: OpenMirror, origin: Origin, tmp_path: Path, damage: str
) -> None:
    """As a sync of the same commit needs it."""
    head = origin.commit({"app/a": "1"})
    async with open_mirror(origin.remote) as mirror:
        assert (await mirror.update()).hash == head
        assert await mirror.objects.has_commit(head)
        DAMAGE[damage](mirror.clone.directory)
        # Also for a process of git that starts after the damage.
        await mirror.objects.close()
        for _ in range(3):
            # Nothing is taken for a repository without the file, which would be a user's mistake.
            with suppress(Unavailable):
                located = await mirror.objects.locate(head, ["app/a"])
                assert isinstance(located["app/a"], Blob)
            await mirror.update()
        await mirror.clone.ensure_commit(head)
        assert await mirror.objects.read_file(head, "app/a") == b"1"
        assert await written(mirror, head, tmp_path / "w") == ["README", "app"]


@pytest.mark.parametrize("damage", DAMAGE)
async def test_a_checkout_recovers_from_a_damaged_clone(
    open_mirror: OpenMirror, origin: Origin, tmp_path: Path, damage: str
) -> None:
    async with open_mirror(origin.remote) as mirror:
        head = await mirror.update()
        await mirror.clone.ensure_commit(head.hash)
        DAMAGE[damage](mirror.clone.directory)
        for name in ("w0", "w1"):
            await mirror.clone.ensure_commit(head.hash)
            assert await written(mirror, head.hash, tmp_path / name) == ["README"]


async def test_a_damaged_clone_stays_in_use_while_the_remote_is_unavailable(
    open_mirror: OpenMirror, origin: Origin
) -> None:
    head = origin.commit({"a": "content of a", "b": "content of b"})
    blob = origin.git("rev-parse", "HEAD:a")
    async with open_mirror(origin.remote) as mirror:
        await mirror.update()
        break_object(mirror.clone.directory, blob, "gone")
        origin.path.rename(origin.path.with_name("away"))
        with pytest.raises(Unavailable):
            await mirror.objects.read_file(head, "a")
        for _ in range(2):
            with pytest.raises(PipecdError):
                await mirror.update()
            assert await mirror.objects.read_file(head, "b") == b"content of b"
        origin.path.with_name("away").rename(origin.path)
        assert (await mirror.update()).hash == head
        assert await mirror.objects.read_file(head, "a") == b"content of a"


async def test_removed_shared_checkouts_are_written_again(
    open_mirror: OpenMirror, origin: Origin, tmp_path: Path
) -> None:
    head = origin.commit({"a": "1"})
    shared = SharedCheckouts(tmp_path / "shared")
    async with open_mirror(origin.remote) as mirror:
        await mirror.update()
        for number, damage in enumerate((None, shutil.rmtree, spoil_indexes)):
            if damage is not None:
                damage(tmp_path / "shared")
            if number == 2:
                with pytest.raises(Unavailable):
                    await shared.link(mirror.checkout, head, tmp_path)
            into = tmp_path / f"w{number}"
            into.mkdir()
            await shared.link(mirror.checkout, head, into)
            assert (into / "a").read_text() == "1"


def spoil_indexes(shared: Path) -> None:
    for index in shared.rglob("*.index"):
        index.write_bytes(b"junk")


def break_object(repository: Path, id_: str, how: str) -> None:
    """Takes every object out of its pack and spoils one."""
    packs = [pack.read_bytes() for pack in repository.glob("objects/pack/*.pack")]
    shutil.rmtree(repository / "objects" / "pack")
    for pack in packs:
        subprocess.run(["git", "unpack-objects", "-q"], cwd=repository, input=pack, check=True)
    file = repository / "objects" / id_[:2] / id_[2:]
    file.chmod(0o644)
    if how == "gone":
        file.unlink()
    else:
        file.write_bytes(b"" if how == "empty" else b"junk")


async def test_a_killed_cat_file_process_is_restarted(
    open_mirror: OpenMirror, origin: Origin
) -> None:
    async with open_mirror(origin.remote) as mirror:
        head = await mirror.update()
        assert await mirror.objects.read_file(head.hash, "README") == b"hello\n"
        for process in children_named("cat-file"):
            os.kill(process, 9)
        with pytest.raises(Unavailable, match="git cannot read"):
            while True:
                await mirror.objects.read_file(head.hash, "README")
        assert await mirror.objects.read_file(head.hash, "README") == b"hello\n"


async def test_a_cancelled_read_does_not_disturb_the_next(
    open_mirror: OpenMirror, origin: Origin
) -> None:
    origin.commit({f"file-{i}": str(i) * 5000 for i in range(50)})
    async with open_mirror(origin.remote) as mirror:
        head = await mirror.update()
        paths = [f"file-{i}" for i in range(50)]
        places = await mirror.objects.locate(head.hash, paths)
        blobs = [place for place in places.values() if isinstance(place, Blob)]
        assert len(blobs) == len(paths)
        for pause in (0, 0.0005, 0.001, 0.002):
            reading = asyncio.create_task(mirror.objects.read(blobs))
            await asyncio.sleep(pause)
            reading.cancel()
            await asyncio.wait({reading})
            assert await mirror.objects.read_file(head.hash, "file-7") == b"7" * 5000


Asked = Callable[[Any, str], Awaitable[object]]


@pytest.mark.parametrize(
    ("arguments", "ask"),
    [
        pytest.param(
            "log*1111", lambda m, _: m.objects.commit("1" * 40), id="a commit is not missing"
        ),
        pytest.param(
            "merge-base",
            lambda m, head: m.objects.is_ancestor(head, head),
            id="a history is not new",
        ),
        pytest.param(
            "diff-tree",
            lambda m, head: m.objects.changed_files(head, "1" * 40),
            id="nothing differs",
        ),
        pytest.param("ls-tree", lambda m, _: m.objects.files("1" * 40), id="no directory is empty"),
        pytest.param(
            "config", lambda m, head: m.objects.git_config(head, "README"), id="no file is invalid"
        ),
        pytest.param(
            "*" + "1" * 40, lambda m, _: m.clone.ensure_commit("1" * 40), id="no commit is removed"
        ),
    ],
)
async def test_a_git_that_is_killed_says_nothing_about_the_repository(
    open_mirror: OpenMirror,
    origin: Origin,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: str,
    ask: Asked,
) -> None:
    program = tmp_path / "bin" / "git"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\ncase "$*" in {arguments}*) kill -9 $$;; esac\nexec {shutil.which("git")} "$@"\n'
    )
    program.chmod(0o755)
    async with open_mirror(origin.remote) as mirror:
        head = await mirror.update()
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    async with open_mirror(origin.remote) as mirror:
        await mirror.update()
        with pytest.raises(Unavailable, match="git was killed by signal 9"):
            await ask(mirror, head.hash)


def children_named(word: str) -> Iterator[int]:
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (entry / "cmdline").read_bytes()
            parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue
        if word.encode() in arguments and int(parent) == os.getpid():
            yield int(entry.name)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for four megabytes."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)]
    if os.getuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root may have a disk of its own")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


async def test_a_full_disk_is_reported_and_recovered_from(
    origin: Origin, small_disk: Path, tmp_path: Path
) -> None:
    first = origin.git("rev-parse", "HEAD")
    repository = Repository("web", origin.remote, "main")
    async with open_mirrors(
        [repository], directory=small_disk / "git", credentials=GitCredentials()
    ) as mirrors:
        mirror = mirrors.of("web")
        await mirror.update()
        ballast = small_disk / "ballast"
        ballast.write_bytes(os.urandom(3 * 1024 * 1024))
        big = origin.commit({"big": os.urandom(2 * 1024 * 1024)})
        with pytest.raises(Unavailable, match="the disk of piped is full"):
            await mirror.update()
        assert mirror.head is not None
        assert mirror.head.hash == first
        assert await mirror.objects.read_file(first, "README") == b"hello\n"
        # No half of a pack keeps the disk full.
        used = sum(file.stat().st_size for file in (small_disk / "git").rglob("*"))
        assert used < 512 * 1024
        ballast.unlink()
        assert (await mirror.update()).hash == big
        with pytest.raises(Unavailable, match="the disk of piped is full"):
            await written(mirror, big, small_disk / "w")
        shutil.rmtree(small_disk / "w")
        assert await written(mirror, big, tmp_path / "w") == ["README", "big"]


async def test_a_huge_file_is_written_but_not_read(
    open_mirror: OpenMirror, origin: Origin, tmp_path: Path
) -> None:
    head = origin.commit({"huge": b"0" * (5 * 1024 * 1024)})
    async with open_mirror(origin.remote) as mirror:
        await mirror.update()
        with pytest.raises(NotFound, match="is larger than 4 MiB"):
            await mirror.objects.read_file(head, "huge")
        assert await written(mirror, head, tmp_path / "w") == ["README", "huge"]


async def test_a_missing_path_is_reported(
    open_mirror: OpenMirror, origin: Origin, tmp_path: Path
) -> None:
    async with open_mirror(origin.remote) as mirror:
        head = await mirror.update()
        with pytest.raises(NotFound, match="was not found"):
            await mirror.checkout.write(head.hash, tmp_path, paths=["nowhere"])
        with pytest.raises(PipecdError):
            await mirror.clone.ensure_commit("f" * 40)
