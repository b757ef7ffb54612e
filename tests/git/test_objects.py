# SPDX-License-Identifier: Apache-2.0
"""Files of a commit are located, read and written unchanged, and only from the commit."""

import gc
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pipecd.git.mirror import Mirror
from pipecd.git.objects import Blob, Missing
from pipecd.git.tree import TreeEntry
from pipecd.model.errors import NotFound, UserMistake
from servers.origin import OpenMirror, Origin


@pytest.fixture
async def mirror(open_mirror: OpenMirror, origin: Origin) -> AsyncIterator[Mirror]:
    async with open_mirror(origin.remote) as mirror:
        yield mirror


async def test_files_are_located_and_read_in_one_batch(mirror: Mirror, origin: Origin) -> None:
    origin.commit({"app/a.yaml": "one", "app/empty": "", "b": b"\x00\xff\n"})
    (origin.path / "app" / "link").symlink_to("a.yaml")
    (origin.path / "app" / "out").symlink_to("../../secret")
    (origin.path / "app" / "abs").symlink_to("/etc/passwd")
    (origin.path / "app" / "dead").symlink_to("none")
    (origin.path / "app" / "loop").symlink_to("loop")
    head = origin.commit()
    await mirror.update()
    paths = ["app/a.yaml", "./app//empty", "b", "app/link", "app/out", "app/abs", "app/dead"]
    paths += ["app/loop", "app", "none", "../x", "b/c", "a\nb"]
    located = await mirror.objects.locate(head, paths)
    assert list(located) == paths
    contents = await mirror.objects.read(p for p in located.values() if isinstance(p, Blob))
    expected = {k: contents[p.id] if isinstance(p, Blob) else p.reason for k, p in located.items()}
    assert expected == {
        "app/a.yaml": b"one",
        "./app//empty": b"",
        "b": b"\x00\xff\n",
        "app/link": b"one",
        "app/out": "is a symbolic link to a file outside of the repository",
        "app/abs": "is a symbolic link to a file outside of the repository",
        "app/dead": "is a symbolic link to a file that does not exist",
        "app/loop": "is a symbolic link that leads back to itself",
        "app": "is a directory",
        "none": "was not found",
        "../x": "is not a path inside of the repository",
        "b/c": "was not found",
        "a\nb": "is not a path inside of the repository",
    }


async def test_a_huge_file_is_not_read(mirror: Mirror, origin: Origin) -> None:
    head = origin.commit({"big": b"x" * (4 * 1024 * 1024 + 1)})
    await mirror.update()
    assert await mirror.objects.locate(head, ["big"]) == {"big": Missing("is larger than 4 MiB")}


async def test_a_missing_file_is_reported_with_its_commit(mirror: Mirror, origin: Origin) -> None:
    head = await mirror.update()
    with pytest.raises(NotFound, match=f"x.yaml was not found at commit {head.hash[:7]}"):
        await mirror.objects.read_file(head.hash, "x.yaml")


async def test_names_that_are_not_utf8_survive(mirror: Mirror, origin: Origin) -> None:
    first = (await mirror.update()).hash
    name = os.fsdecode(b"caf\xe9 \xf0.txt")
    second = origin.commit({name: "x", "with\nbreak": "y"})
    await mirror.update()
    assert await mirror.objects.changed_files(first, second) == (name, "with\nbreak")
    assert [f.path for f in await mirror.objects.files(second)] == ["README", name, "with\nbreak"]


async def test_a_moved_file_changes_both_paths(mirror: Mirror, origin: Origin) -> None:
    first = origin.commit({"app1/x": "a long enough content to be recognised\n" * 9})
    (origin.path / "app2").mkdir()
    (origin.path / "app1" / "x").rename(origin.path / "app2" / "x")
    second = origin.commit()
    await mirror.update()
    assert await mirror.objects.changed_files(first, second) == ("app1/x", "app2/x")


async def test_files_below_a_directory(mirror: Mirror, origin: Origin) -> None:
    head = origin.commit({"a/1": "", "a/b/2": "", "ab/3": "", "*/4": ""})
    await mirror.update()
    assert [f.path for f in await mirror.objects.files(head, "a")] == ["a/1", "a/b/2"]
    assert [f.path for f in await mirror.objects.files(head, "*")] == ["*/4"]


async def test_a_checkout_keeps_modes_and_links(
    mirror: Mirror, origin: Origin, tmp_path: Path
) -> None:
    origin.commit({"app/run.sh": "#!/bin/sh\n", "app/x": "1"})
    (origin.path / "app/run.sh").chmod(0o755)
    (origin.path / "app/link").symlink_to("x")
    head = origin.commit()
    await mirror.update()
    into = tmp_path / "out"
    into.mkdir()
    await mirror.checkout.write(head, into)
    assert sorted(str(p.relative_to(into)) for p in into.rglob("*")) == [
        "README",
        "app",
        "app/link",
        "app/run.sh",
        "app/x",
    ]
    assert os.access(into / "app/run.sh", os.X_OK)
    assert (into / "app/link").is_symlink()
    assert not list(mirror.clone.directory.glob("index-*"))


async def test_only_the_requested_paths_are_written(
    mirror: Mirror, origin: Origin, tmp_path: Path
) -> None:
    head = origin.commit({"a/1": "", "b/2": "", "c": ""})
    await mirror.update()
    into = tmp_path / "out"
    into.mkdir()
    await mirror.checkout.write(head, into, paths=["a", "c"])
    assert sorted(p.name for p in into.iterdir()) == ["a", "c"]
    with pytest.raises(NotFound):
        await mirror.checkout.write(head, into, paths=["nothing"])
    with pytest.raises(UserMistake):
        await mirror.checkout.write(head, into, paths=["../../etc"])


async def test_a_commit_without_files_is_an_empty_directory(
    mirror: Mirror, origin: Origin, tmp_path: Path
) -> None:
    head = origin.commit({"README": None})
    await mirror.update()
    into = tmp_path / "out"
    into.mkdir()
    await mirror.checkout.write(head, into)
    assert not list(into.iterdir())


async def test_unknown_commits_are_reported(mirror: Mirror, tmp_path: Path) -> None:
    await mirror.update()
    with pytest.raises(NotFound):
        await mirror.objects.commit("2" * 40)
    with pytest.raises(NotFound):
        await mirror.objects.changed_files("2" * 40, "HEAD")
    with pytest.raises(NotFound):
        await mirror.objects.files("2" * 40)
    with pytest.raises(NotFound):
        await mirror.checkout.write("2" * 40, tmp_path)


async def test_a_commit_with_an_odd_author_and_no_message(mirror: Mirror, origin: Origin) -> None:
    origin.git(
        "-c",
        b"user.name=Caf\xe9",
        "commit",
        "-q",
        "--allow-empty",
        "--allow-empty-message",
        "-m",
        "",
    )
    head = await mirror.update()
    assert head.message == ""
    assert "Caf" in head.author


async def test_directories_of_old_commits_are_not_kept(mirror: Mirror, origin: Origin) -> None:
    names = {f"app-{number}": "x" for number in range(100)}
    commits = origin.import_commits([{**names, "README": str(number)} for number in range(400)])
    await mirror.update()
    for commit in commits:
        assert len(await mirror.objects.entries(f"{commit}:")) == 101
    assert _cached_entries() < 101 * 50


async def test_the_directories_of_a_large_commit_are_kept(mirror: Mirror, origin: Origin) -> None:
    [commit] = origin.import_commits([{f"app-{n}/file": str(n) for n in range(1500)}])
    await mirror.update()
    await mirror.objects.check_size(commit, with_size=False)
    for directory in await mirror.objects.entries(f"{commit}:"):
        assert len(await mirror.objects.entries(directory.id)) == 1
    assert _cached_entries() >= 2 * 1500


def _cached_entries() -> int:
    return sum(isinstance(each, TreeEntry) for each in gc.get_objects())
