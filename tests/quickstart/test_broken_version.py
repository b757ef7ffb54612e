# SPDX-License-Identifier: Apache-2.0
"""`pipecd quickstart --break` commits a bad version, and only what a revert takes back."""

import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pipecd.model.errors import UserMistake
from pipecd.quickstart.broken_version import break_service
from pipecd.quickstart.datadir import DataDir
from pipecd.quickstart.sample_repository import SERVICE, create_repository


async def data_dir(path: Path, *, is_deployed: bool = True) -> DataDir:
    data = DataDir(path)
    await create_repository(data.repository, service_port=1, status_port=2)
    data.save_identity(replace(data.load_identity(), is_service_deployed=is_deployed))
    return data


def git(data: DataDir, *arguments: str) -> str:
    identity = ("-c", "user.name=Ann", "-c", "user.email=ann@example.com")
    done = subprocess.run(
        ["git", "-C", str(data.repository), *identity, *arguments],
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


def server(data: DataDir) -> Path:
    return data.repository / SERVICE / "server.py"


def change_greeting(data: DataDir) -> None:
    text = server(data).read_text()
    changed = text.replace("Hello from commit {COMMIT[:7]}!", "Good evening")
    assert changed != text
    server(data).write_text(changed)


async def test_a_changed_greeting_is_broken_and_survives_the_repair(tmp_path: Path) -> None:
    data = await data_dir(tmp_path)
    change_greeting(data)
    git(data, "commit", "--all", "--message", "Greet in the evening")
    good = server(data).read_text()
    commit = await break_service(data, at_most=0)
    assert server(data).read_text() != good
    compile(server(data).read_text(), "server.py", "exec")
    git(data, "revert", "--no-edit", commit)
    assert server(data).read_text() == good


async def test_the_repair_is_named_although_commits_followed(tmp_path: Path) -> None:
    data = await data_dir(tmp_path)
    broken = await break_service(data, at_most=0)
    (data.repository / "hello" / "greeting.txt").write_text("Good evening\n")
    git(data, "commit", "--all", "--message", "Greet in the evening")
    with pytest.raises(UserMistake, match=rf"broken already.* revert --no-edit {broken}"):
        await break_service(data, at_most=0)


def rewrite(data: DataDir) -> None:
    server(data).write_text("print('something else')\n")
    git(data, "commit", "--all", "--message", "Rewrite")


REFUSED: dict[str, tuple[Callable[[DataDir], object], str]] = {
    "changes that are not committed": (change_greeting, "web/server.py has changes that are not"),
    "another branch": (lambda data: git(data, "switch", "--create", "try"), "the branch try is"),
    "another server": (rewrite, "does not call .* break it yourself"),
    "no web service": (
        lambda data: git(data, "rm", "-r", "--quiet", "web"),
        "start a quickstart first",
    ),
}


@pytest.mark.parametrize(("change", "message"), REFUSED.values(), ids=REFUSED)
async def test_what_a_revert_could_not_take_back_is_refused(
    tmp_path: Path, change: Callable[[DataDir], object], message: str
) -> None:
    data = await data_dir(tmp_path)
    change(data)
    head = git(data, "rev-parse", "HEAD")
    with pytest.raises(UserMistake, match=message):
        await break_service(data, at_most=0)
    assert git(data, "rev-parse", "HEAD") == head


async def test_nothing_is_broken_before_the_first_deployment(tmp_path: Path) -> None:
    """It would be a quick sync, which has no canary to notice it."""
    data = await data_dir(tmp_path, is_deployed=False)
    with pytest.raises(UserMistake, match="not deployed yet"):
        await break_service(data, at_most=0.1)
    assert git(data, "log", "--format=%s") == "Say hello"


async def test_without_a_quickstart_there_is_nothing_to_break(tmp_path: Path) -> None:
    with pytest.raises(UserMistake, match="start a quickstart first"):
        await break_service(DataDir(tmp_path), at_most=0)
