# SPDX-License-Identifier: Apache-2.0
"""Releases contain the files of a commit and nothing else, and changes of them are found."""

import os
import pwd
from collections.abc import Callable
from pathlib import Path

import pytest

from pipecd.plugins.process.release_files import ReleaseLimits, changed_files, read_manifest
from pipecd.plugins.process.releases import (
    copy_release,
    others_of_group,
    read_tree,
    remove_releases,
)
from pipecd.sdk import UserMistake


@pytest.fixture
def application(tmp_path: Path) -> Path:
    directory = tmp_path / "repository" / "app"
    (directory / "bin").mkdir(parents=True)
    (directory / "bin" / "serve").write_text("#!/bin/sh\n")
    (directory / "bin" / "serve").chmod(0o755)
    (directory / "data").write_text("one")
    (directory / ".git").mkdir()
    (directory / ".git" / "config").write_text("secret")
    (tmp_path / "repository" / "shared").write_text("shared by all")
    (tmp_path / "secret").write_text("of the host")
    return directory


def copy(application: Path, commit: str = "c0ffee") -> Path:
    tree = read_tree(application, application.parent, config="app.pipecd.yaml")
    return copy_release(tree, commit, application.parents[1] / "releases").path


def test_a_release_has_the_files_with_their_modes(application: Path) -> None:
    release = copy(application)
    files = {str(p.relative_to(release)): p for p in release.rglob("*") if p.is_file()}
    assert set(files) == {"bin/serve", "data"}
    assert files["bin/serve"].stat().st_mode & 0o777 == 0o700
    assert files["data"].stat().st_mode & 0o777 == 0o600
    assert release.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        pytest.param(ReleaseLimits(files=4), "has more than 4 files", id="files"),
        pytest.param(ReleaseLimits(size=39), "is larger than 39 bytes", id="bytes"),
    ],
)
def test_a_release_has_a_limited_number_of(
    application: Path, limits: ReleaseLimits, reason: str
) -> None:
    """A link is small in the repository, and as large as its file in the release."""
    for number in range(3):
        (application / f"link-{number}").symlink_to("../shared")
    enough = ReleaseLimits(files=5, size=10 + 3 + 3 * 13)
    tree = read_tree(application, application.parent, config="app.pipecd.yaml", limits=enough)
    assert len(tree.files) == 5
    with pytest.raises(UserMistake, match=reason) as refusal:
        read_tree(application, application.parent, config="app.pipecd.yaml", limits=limits)
    assert "of the deploy target" in refusal.value.hint


def test_who_else_is_in_the_group_of_a_user() -> None:
    account = pwd.struct_passwd(("www", "x", 33, 33, "", "/", "/bin/sh"))
    alike = pwd.struct_passwd(("proxy", "x", 34, 33, "", "/", "/bin/sh"))
    other = pwd.struct_passwd(("mail", "x", 8, 8, "", "/", "/bin/sh"))
    assert others_of_group(account, [account, other], ["www"]) == []
    assert others_of_group(account, [account, alike, other], ["anna", "www"]) == ["anna", "proxy"]


@pytest.mark.parametrize(
    ("name", "is_released"),
    [
        pytest.param("app.pipecd.yaml", False, id="its configuration"),
        pytest.param("staging.pipecd.yaml", False, id="that of another application beside it"),
        pytest.param("bin/app.pipecd.yaml", True, id="a file that is called alike elsewhere"),
        pytest.param("settings.yaml", True, id="a setting of the program"),
    ],
)
def test_a_changed_configuration_is_no_other_release(
    application: Path, name: str, is_released: bool
) -> None:
    (application / name).write_text("replicas: 1")
    before = read_tree(application, application.parent, config="app.pipecd.yaml")
    (application / name).write_text("replicas: 2")
    after = read_tree(application, application.parent, config="app.pipecd.yaml")
    assert (name in after.files) is is_released
    assert (before.digest != after.digest) is is_released


def test_a_configuration_with_another_name_is_left_out_too(application: Path) -> None:
    (application / ".pipe.yaml").write_text("kind: Application")
    tree = read_tree(application, application.parent, config=".pipe.yaml")
    assert set(tree.files) == {"bin/serve", "data"}


def test_links_stay_inside(application: Path) -> None:
    (application / "inside").symlink_to("bin/serve")
    (application / "shared").symlink_to("../shared")
    release = copy(application)
    assert str((release / "inside").readlink()) == "bin/serve"
    assert not (release / "shared").is_symlink()
    assert (release / "shared").read_text() == "shared by all"


REFUSED: dict[str, tuple[Callable[[Path], None], str]] = {
    "a link to a file of the host": (
        lambda app: (app / "out").symlink_to("../../secret"),
        "the link out cannot be released: it leads outside of the repository",
    ),
    "an absolute link": (
        lambda app: (app / "out").symlink_to("/etc/passwd"),
        "it leads outside of the repository",
    ),
    "a link into .git": (
        lambda app: (app / "out").symlink_to(".git/config"),
        "it leads into the directory .git",
    ),
    "a link to a directory beside the application": (
        lambda app: (app / "out").symlink_to(".."),
        "leads out of the directory of the application",
    ),
    "a FIFO": (lambda app: os.mkfifo(app / "out"), "out is neither a file nor a directory"),
}


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED)
def test_what_leads_out_is_refused(
    application: Path, make: Callable[[Path], None], message: str
) -> None:
    make(application)
    with pytest.raises(UserMistake, match=message):
        copy(application)


def test_the_same_files_are_copied_once(application: Path) -> None:
    first = copy(application)
    before = (first / "data").stat().st_ino
    assert copy(application) == first
    assert (first / "data").stat().st_ino == before
    (application / "data").write_text("two")
    assert copy(application) != first


CHANGES: dict[str, tuple[Callable[[Path], object], tuple[str, ...]]] = {
    "nothing": (lambda _: None, ()),
    "a file with other content": (lambda r: (r / "data").write_text("xxx"), ("data",)),
    "a file that is only touched": (lambda r: (r / "data").touch(), ()),
    "a removed file": (lambda r: (r / "data").unlink(), ("data",)),
    "a file that is not executable any more": (lambda r: (r / "bin/serve").chmod(0o600), ("bin/serve",)),
    "a link instead of a file": (lambda r: [(r / "data").unlink(), (r / "data").symlink_to("x")], ("data",)),
    "a new file": (lambda r: (r / "cache").write_text("x"), ()),
}  # fmt: skip


@pytest.mark.parametrize(("change", "expected"), CHANGES.values(), ids=CHANGES)
def test_changes_of_a_release_are_found(
    application: Path, change: Callable[[Path], object], expected: tuple[str, ...]
) -> None:
    release = copy(application)
    change(release)
    assert changed_files(release) == expected


def test_a_changed_release_is_copied_again_beside_it(application: Path) -> None:
    first = copy(application)
    (first / "data").write_text("changed")
    tree = read_tree(application, application.parent, config="app.pipecd.yaml")
    second = copy_release(tree, "c0ffee", first.parent)
    assert (second.revision, second.path != first) == (1, True)
    assert (second.path / "data").read_text() == "one"


def test_an_interrupted_copy_does_not_count(application: Path) -> None:
    first = copy(application)
    (first / "data").write_text("half")
    (first.parent / f"{first.name}.json").unlink()
    assert read_manifest(first) is None
    assert copy(application) == first
    assert (first / "data").read_text() == "one"


def test_old_releases_are_removed(application: Path) -> None:
    releases: list[Path] = []
    for number in range(4):
        (application / "data").write_text(str(number))
        releases.append(copy(application, f"commit{number}"))
        os.utime(releases[-1], (number, number))
    remove_releases(releases[0].parent, {releases[0]}, previous=1)
    assert [release.exists() for release in releases] == [True, False, False, True]
    assert read_manifest(releases[1]) is None
