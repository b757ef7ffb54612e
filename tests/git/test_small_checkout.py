# SPDX-License-Identifier: Apache-2.0
"""Small working copies are written without a git process, and exactly as git would."""

import resource
import stat
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipecd.git.small_checkout import (
    SmallFile,
    is_plain_name,
    read_small_files,
    write_small_files,
)
from servers.origin import OpenMirror, Origin

APPLICATION = {
    "README": "hello\n",
    "apps/cart/app.pipecd.yaml": "kind: Application\r\n",
    "apps/cart/deep/er/file": b"\0\xff",
    "apps/cart/empty": "",
    "apps/shop/other": "not required",
}


def content_of(directory: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(directory)): (
            stat.S_IMODE(path.lstat().st_mode),
            str(path.readlink()).encode() if path.is_symlink() else path.read_bytes(),
        )
        for path in sorted(directory.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


@pytest.mark.parametrize(
    ("files", "paths", "by_git"),
    [
        pytest.param(APPLICATION, ["apps/cart", "README"], False, id="a directory and a file"),
        pytest.param(APPLICATION, ["."], False, id="a small repository"),
        pytest.param(
            {**APPLICATION, ".gitattributes": "*.yaml text eol=lf\n"},
            ["apps/cart"],
            True,
            id="attributes at the root",
        ),
        pytest.param(
            {**APPLICATION, "apps/cart/deep/.gitattributes": "file ident\n"},
            ["apps/cart"],
            True,
            id="attributes in the directory",
        ),
        pytest.param({"a/large": "x" * 1_100_000}, ["a"], True, id="a large file"),
        pytest.param({f"a/{n}": "x" for n in range(120)}, ["a"], True, id="many files"),
        pytest.param({"a/naïve": "x"}, ["a"], True, id="a name that is not ASCII"),
    ],
)
async def test_a_working_copy_is_what_git_writes(
    files: Mapping[str, str | bytes],
    paths: list[str],
    by_git: bool,
    origin: Origin,
    open_mirror: OpenMirror,
    tmp_path: Path,
) -> None:
    commit = origin.commit(files)
    (origin.path / next(iter(files))).chmod(0o755)
    commit = origin.commit()
    async with open_mirror(origin.remote) as mirror:
        await mirror.clone.ensure_commit(commit)
        assert (await read_small_files(mirror.objects, commit, paths) is None) is by_git
        for name in ("small", "git"):
            (tmp_path / name).mkdir()
        await mirror.checkout.write_new(commit, tmp_path / "small", paths=paths)
        await mirror.checkout.write_tree(commit, tmp_path / "git", paths=paths)
    assert content_of(tmp_path / "small") == content_of(tmp_path / "git")


async def test_links_are_left_to_git(
    origin: Origin, open_mirror: OpenMirror, tmp_path: Path
) -> None:
    (origin.path / "a").mkdir()
    (origin.path / "a" / "link").symlink_to("/etc/passwd")
    commit = origin.commit({"a/file": "x"})
    async with open_mirror(origin.remote) as mirror:
        await mirror.clone.ensure_commit(commit)
        assert await read_small_files(mirror.objects, commit, ["a"]) is None
        assert await read_small_files(mirror.objects, commit, ["a/link"]) is None
        assert await read_small_files(mirror.objects, commit, ["a/link/below"]) is None
        assert await read_small_files(mirror.objects, commit, ["missing"]) is None
        await mirror.checkout.write_new(commit, tmp_path, paths=["a"])
    assert (tmp_path / "a" / "link").readlink() == Path("/etc/passwd")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        pytest.param("app.pipecd.yaml", True, id="an ordinary name"),
        pytest.param(".github", True, id="a name that begins like .git"),
        pytest.param("..", False, id="the parent directory"),
        pytest.param(".git", False, id="the directory of git"),
        pytest.param(".GIT", False, id="the directory of git on some file systems"),
        pytest.param(".git. .", False, id="trailing dots and spaces"),
        pytest.param("git~1", False, id="a short name"),
        pytest.param(".git:stream", False, id="a stream of NTFS"),
        pytest.param("a\\b", False, id="a separator of another platform"),
        pytest.param("a\nb", False, id="a line break"),
    ],
)
def test_names_that_git_refuses_are_left_to_git(name: str, expected: bool) -> None:
    assert is_plain_name(name) is expected


@contextmanager
def files_of_at_most(size: int) -> Generator[None, None, None]:
    """Lets the kernel write the beginning of a larger file, as a disk does that is nearly full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_file_that_does_not_fit_on_the_disk_is_an_error_and_not_cut_off(tmp_path: Path) -> None:
    files = {"app/deployment.yaml": SmallFile(b"x" * 10_000, is_executable=False)}
    with files_of_at_most(4096), pytest.raises(OSError, match="File too large"):
        write_small_files(files, tmp_path)
