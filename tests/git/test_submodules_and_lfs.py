# SPDX-License-Identifier: Apache-2.0
"""Submodules and files of Git LFS are there as after `git clone --recursive`."""

import asyncio
import hashlib
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from pipecd.git.credentials import GitCredentials
from pipecd.git.remote import submodule_remote
from pipecd.model.errors import Denied, PipecdError, UserMistake
from servers.git_http import GitHttp
from servers.origin import OpenMirror, Origin

LARGE = b"a large file" * 100_000
LFS_APP = (".gitattributes", "app")
ATTRIBUTES = "*.bin filter=lfs diff=lfs merge=lfs -text\n"


def note(content: bytes) -> str:
    oid = hashlib.sha256(content).hexdigest()
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{oid}\nsize {len(content)}\n"


def keep(git_http: GitHttp, *contents: bytes) -> None:
    git_http.large_files |= {hashlib.sha256(content).hexdigest(): content for content in contents}


def add_submodule(parent: Any, path: str, url: str, commit: str) -> str:
    """Adds a submodule as `git submodule add` would, which refuses local directories."""
    parent.git("config", "-f", ".gitmodules", f"submodule.{path}.path", path)
    parent.git("config", "-f", ".gitmodules", f"submodule.{path}.url", url)
    parent.git("add", ".gitmodules")
    parent.git("update-index", "--add", "--cacheinfo", f"160000,{commit},{path}")
    parent.git("commit", "-q", "-m", "submodule")
    return parent.git("rev-parse", "HEAD")


async def written(
    mirror: Any, commit: str, into: Path, paths: tuple[str, ...] = ()
) -> dict[str, bytes]:
    await asyncio.to_thread(into.mkdir)
    await mirror.clone.ensure_commit(commit)
    await mirror.checkout.write(commit, into, paths=paths)
    return content(into)


def content(directory: Path) -> dict[str, bytes]:
    files = (file for file in directory.rglob("*") if file.is_file())
    return {str(file.relative_to(directory)): file.read_bytes() for file in files}


async def test_nested_submodules_are_written(
    open_mirror: OpenMirror, origin: Origin, new_origin: Any, tmp_path: Path
) -> None:
    inner, middle = new_origin("inner"), new_origin("middle")
    deep = inner.commit({"deep": "1"})
    middle.commit({"mid": "1"})
    pinned = add_submodule(middle, "lib/inner", "../inner", deep)
    middle.commit({"mid": "2"})
    head = add_submodule(origin, "app/vendor", "../middle", pinned)
    async with open_mirror(origin.remote) as mirror:
        whole = await written(mirror, head, tmp_path / "whole")
        part = await written(mirror, head, tmp_path / "part", ("app/vendor",))
        other = await written(mirror, head, tmp_path / "other", ("README",))
    assert whole["app/vendor/mid"] == b"1"
    assert whole["app/vendor/lib/inner/deep"] == b"1"
    assert set(part) == {p for p in whole if p.startswith("app/vendor/")}
    assert set(other) == {"README"}


async def test_a_submodule_over_http_gets_the_password_of_its_host(
    open_mirror: OpenMirror, origin: Origin, new_origin: Any, git_http: GitHttp, tmp_path: Path
) -> None:
    git_http.require("ann", "s3cret")
    library = new_origin("library")
    commit = library.commit({"x": "1"})
    head = add_submodule(origin, "lib", "../../library/.git", commit)
    credentials = GitCredentials(username="ann", password="s3cret")
    async with open_mirror(git_http.url("origin/.git"), credentials=credentials) as mirror:
        assert (await written(mirror, head, tmp_path / "w"))["lib/x"] == b"1"


async def test_a_missing_submodule_fails_only_where_it_is_requested(
    open_mirror: OpenMirror, origin: Origin, tmp_path: Path
) -> None:
    head = add_submodule(origin, "app/lib", "../gone", "1" * 40)
    async with open_mirror(origin.remote) as mirror:
        assert "README" in await written(mirror, head, tmp_path / "whole")
        with pytest.raises(PipecdError, match="the repository was not found"):
            await written(mirror, head, tmp_path / "part", ("app",))


@pytest.mark.parametrize(
    ("parent", "url", "expected"),
    [
        pytest.param("https://h/a/b.git", "../c.git", "https://h/a/c.git", id="beside"),
        pytest.param("https://u:p@h/a/b", "./c", "https://h/a/b/c", id="below, no password"),
        pytest.param("git@h:a/b.git", "../../c/d", "git@h:c/d", id="the short form of ssh"),
        pytest.param("ssh://git@h:22/a/b", "../c", "ssh://git@h:22/a/c", id="ssh"),
        pytest.param("/srv/a", "../b", "/srv/b", id="a directory"),
        pytest.param("https://h/a", "git@other:x/y", "git@other:x/y", id="another host"),
        pytest.param("/srv/a", "/srv/c", "/srv/c", id="a directory beside a directory"),
    ],
)
def test_the_remote_of_a_submodule(parent: str, url: str, expected: str) -> None:
    assert submodule_remote(parent, url) == expected


@pytest.mark.parametrize(
    ("parent", "url"),
    [
        pytest.param("https://h/a/b", "/etc", id="a local path"),
        pytest.param("https://h/a/b", "file:///etc", id="a local path as a URL"),
        pytest.param("https://h/a/b", "ext::sh -c id", id="a program"),
        pytest.param("https://h/a/b", "-u./x", id="an option"),
        pytest.param("https://h/a/b", "ssh://-oProxyCommand=id/x", id="an option as a host"),
        pytest.param("https://h/a/b", "git@-oProxyCommand=id:x", id="an option as an scp host"),
        pytest.param("git@h:a", "../../../x", id="a relative path above the root"),
    ],
)
def test_forbidden_remotes_of_submodules(parent: str, url: str) -> None:
    with pytest.raises(UserMistake):
        submodule_remote(parent, url)


async def test_lfs_files_are_written_and_shared(
    open_mirror: OpenMirror, origin: Origin, git_http: GitHttp, tmp_path: Path
) -> None:
    git_http.require("ann", "s3cret")
    small = b"small"
    head = origin.commit(
        {
            ".gitattributes": ATTRIBUTES,
            "app/large, 1*.bin": note(LARGE),
            "app/small.bin": note(small),
            "other/gone.bin": note(b"nobody has it"),
            "app/plain": "plain",
        }
    )
    keep(git_http, LARGE, small)
    credentials = GitCredentials(username="ann", password="s3cret")
    async with open_mirror(git_http.url("origin/.git"), credentials=credentials) as mirror:
        first = await written(mirror, head, tmp_path / "one", LFS_APP)
        requests_before = len(git_http.requests)
        second = await written(mirror, head, tmp_path / "two", LFS_APP)
        assert len(git_http.requests) == requests_before
    assert first == second
    assert first["app/large, 1*.bin"] == LARGE
    assert first["app/small.bin"] == small
    one, two = (tmp_path / name / "app" / "large, 1*.bin" for name in ("one", "two"))
    assert one.stat().st_ino == two.stat().st_ino
    one, two = (tmp_path / name / "app" / "small.bin" for name in ("one", "two"))
    assert one.stat().st_ino != two.stat().st_ino


async def test_a_missing_lfs_file_fails_only_where_it_is_requested(
    open_mirror: OpenMirror, origin: Origin, git_http: GitHttp, tmp_path: Path
) -> None:
    gone = note(b"nobody has it")
    head = origin.commit({".gitattributes": ATTRIBUTES, "app/gone.bin": gone})
    async with open_mirror(git_http.url("origin/.git")) as mirror:
        whole = await written(mirror, head, tmp_path / "whole")
        with pytest.raises(PipecdError, match="Git LFS"):
            await written(mirror, head, tmp_path / "part", LFS_APP)
    assert whole["app/gone.bin"].decode() == gone


async def test_a_missing_git_lfs_program_is_reported(
    open_mirror: OpenMirror, origin: Origin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "git").symlink_to(shutil.which("git") or "git")
    head = origin.commit({".gitattributes": ATTRIBUTES, "app/a.bin": note(b"x")})
    monkeypatch.setenv("PATH", str(programs))
    async with open_mirror(origin.remote) as mirror:
        with pytest.raises(UserMistake, match=r"app/a.bin is stored in Git LFS") as caught:
            await written(mirror, head, tmp_path / "w", LFS_APP)
    assert "install git-lfs" in caught.value.hint


async def test_lfs_reports_a_wrong_password(
    open_mirror: OpenMirror, origin: Origin, git_http: GitHttp, tmp_path: Path
) -> None:
    head = origin.commit({".gitattributes": ATTRIBUTES, "app/a.bin": note(LARGE)})
    keep(git_http, LARGE)
    async with open_mirror(git_http.url("origin/.git")) as mirror:
        await mirror.update()
        git_http.require("ann", "s3cret")
        with pytest.raises(Denied, match="Git LFS"):
            await written(mirror, head, tmp_path / "w", LFS_APP)


async def test_a_pointer_without_the_lfs_attribute_is_a_regular_file(
    open_mirror: OpenMirror, origin: Origin, tmp_path: Path
) -> None:
    head = origin.commit({"app/a.bin": note(b"x")})
    async with open_mirror(origin.remote) as mirror:
        files = await written(mirror, head, tmp_path / "w", ("app",))
    assert files["app/a.bin"].startswith(b"version ")


@pytest.mark.slow
async def test_unused_submodules_and_lfs_objects_are_removed_at_the_next_start(
    open_mirror: OpenMirror, origin: Origin, new_origin: Any, git_http: GitHttp, tmp_path: Path
) -> None:
    library = new_origin("library")
    commit = library.commit({"x": "1"})
    origin.commit({".gitattributes": ATTRIBUTES, "a.bin": note(LARGE), "b.bin": note(b"b")})
    keep(git_http, LARGE, b"b")
    head = add_submodule(origin, "lib", "../../library/.git", commit)
    url = git_http.url("origin/.git")
    async with open_mirror(url) as mirror:
        first = await written(mirror, head, tmp_path / "one")
        [module] = (tmp_path / "m" / "modules").iterdir()
        old, new = sorted(mirror.clone.directory.glob("lfs/objects/??/??/*"))
    os.utime(module, (0, 0))
    os.utime(old, (0, 0))
    async with open_mirror(url) as mirror:
        await mirror.update()
        assert not module.exists()
        assert not old.exists()
        assert new.exists()
        assert await written(mirror, head, tmp_path / "two") == first
