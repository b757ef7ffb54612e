# SPDX-License-Identifier: Apache-2.0
"""The repository of the installations behaves as one on a Git host, whoever pushes at the same time."""

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from faults.repository import Repository
from servers.origin import Origin

PUSHES = 12


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    begun = Repository.begin(tmp_path / "origin")
    begun.begin_history({"README": b"sources\n", "web/values.yaml": b"tag: v0\n"}, "the beginning")
    return begun


def clone(repository: Repository, directory: Path) -> Origin:
    subprocess.run(["git", "clone", "-q", repository.remote, str(directory)], check=True)
    return Origin(directory)


def subjects(repository: Repository) -> list[str]:
    return repository.git("log", "--format=%s", "main").splitlines()


@pytest.mark.slow
def test_pushes_at_the_same_time_are_neither_lost_nor_mixed(
    repository: Repository, tmp_path: Path
) -> None:
    piped = clone(repository, tmp_path / "clone")

    def push_as_piped(number: int) -> None:
        while True:
            piped.commit({"web/values.yaml": f"tag: v{number}\n"}, f"event v{number}")
            try:
                piped.git("push", "--quiet", "origin", "HEAD:main")
            except subprocess.CalledProcessError:
                piped.git("fetch", "--quiet")
                piped.git("reset", "--quiet", "--hard", "origin/main")
            else:
                return

    with ThreadPoolExecutor(1) as pool:
        pushed = pool.map(push_as_piped, range(1, PUSHES + 1))
        for number in range(PUSHES):
            repository.commit({"cart/app": str(number)}, f"user {number}")
        list(pushed)
    events = [f"event v{number}" for number in range(1, PUSHES + 1)]
    assert [each for each in reversed(subjects(repository)) if "event" in each] == events
    users = [f"user {number}" for number in range(PUSHES)]
    assert [each for each in reversed(subjects(repository)) if "user" in each] == users
    for commit, subject in (
        line.split(" ", 1) for line in repository.git("log", "--format=%h %s", "main").splitlines()
    ):
        changed = repository.git("show", "--format=", "--name-only", commit).splitlines()
        expected = {"event": ["web/values.yaml"], "user": ["cart/app"]}
        assert changed == expected.get(subject.split()[0], ["README", "web/values.yaml"])


def test_a_commit_goes_on_top_with_its_date_or_to_a_branch_of_its_own(
    repository: Repository,
) -> None:
    commit = repository.commit({"cart/app": "one\n"}, at=1577836800)
    times = repository.git("show", "--no-patch", "--format=%ct %at", "main")
    assert times == "1577836800 1577836800"
    proposed = repository.commit({"cart/app": "two\n"}, "a proposal", branch="proposal")
    assert repository.git("rev-parse", "main", "proposal", "proposal~1").split() == [
        commit,
        proposed,
        commit,
    ]
    assert repository.files() == {
        "README": b"sources\n",
        "cart/app": b"one\n",
        "web/values.yaml": b"tag: v0\n",
    }


def test_a_revert_restores_the_content_before_the_last_commit(repository: Repository) -> None:
    before = repository.files()
    repository.commit({"cart/app": "one\n"})
    repository.revert()
    assert repository.files() == before
    assert subjects(repository) == ['Revert "a change"', "a change", "the beginning"]


def test_a_force_push_leaves_behind_commits_that_are_still_listed(repository: Repository) -> None:
    for number in range(3):
        repository.commit({"cart/app": str(number)}, f"user {number}")
    repository.force_push("HEAD~2")
    assert subjects(repository) == ["user 0", "the beginning"]
    known = repository.git("log", "--all", "--reflog", "--format=%s").splitlines()
    assert sorted(known) == ["the beginning", "user 0", "user 1", "user 2"]
    with pytest.raises(subprocess.CalledProcessError):
        repository.force_push("HEAD~2")
