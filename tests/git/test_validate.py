# SPDX-License-Identifier: Apache-2.0
"""No branch, hash or path of a user can become an option or a pattern of git."""

import shutil
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecd.git.merge import merge_commits, resolve_commit
from pipecd.git.mirror import Mirror
from pipecd.git.validate import validate_branch, validate_hash, validate_path
from pipecd.model.errors import NotFound, PipecdError, UserMistake
from servers.origin import OpenMirror, Origin

OPTION = "--output=stolen"


@pytest.mark.parametrize("branch", ["main", "release/1.x", "feature/a-b_c", "日本語", "a@b"])
def test_branch_names_are_accepted(branch: str) -> None:
    assert validate_branch(branch) == f"refs/heads/{branch}"


@given(st.text(alphabet="ab-./@{~^:?*[\\ \n\0.lock", min_size=1, max_size=12))
def test_accepted_branch_names_are_valid_for_git(branch: str) -> None:
    try:
        ref = validate_branch(branch)
    except UserMistake:
        return
    git = shutil.which("git") or "git"
    assert subprocess.run([git, "check-ref-format", ref], check=False).returncode == 0


@pytest.mark.parametrize("commit", ["", "abc", "HEAD", "main", OPTION, "-1", "a" * 40 + "\nb"])
def test_other_revisions_than_hashes_are_refused(commit: str) -> None:
    with pytest.raises(NotFound, match="is not the hash of a commit"):
        validate_hash(commit)


@pytest.mark.parametrize("path", ["/etc/passwd", "..", "../x", "a/../../x", "a\0b"])
def test_paths_outside_of_the_repository_are_refused(path: str) -> None:
    with pytest.raises(UserMistake, match="is not a path inside of the repository"):
        validate_path(path)


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda m, _: m.objects.commit(OPTION), id="commit"),
        pytest.param(lambda m, _: m.objects.has_commit(OPTION), id="has_commit"),
        pytest.param(lambda m, _: m.objects.entries(f"{OPTION}:"), id="entries"),
        pytest.param(lambda m, _: m.objects.entry(OPTION, "a"), id="entry"),
        pytest.param(lambda m, h: m.objects.changed_files(OPTION, h), id="changed_files, old"),
        pytest.param(lambda m, h: m.objects.changed_files(h, OPTION), id="changed_files, new"),
        pytest.param(lambda m, _: m.objects.files(OPTION), id="files"),
        pytest.param(lambda m, _: m.objects.locate(OPTION, ["a"]), id="locate"),
        pytest.param(lambda m, _: m.objects.git_config(OPTION, "a"), id="git_config"),
        pytest.param(lambda m, _: m.clone.ensure_commit(OPTION), id="ensure_commit"),
        pytest.param(lambda m, _: m.checkout.write_tree(OPTION, Path("/none")), id="write_tree"),
        pytest.param(lambda m, _: m.checkout.link_history(OPTION, Path("/none")), id="history"),
        pytest.param(lambda m, _: resolve_commit(m.clone, OPTION, "main"), id="resolve_commit"),
        pytest.param(lambda m, h: merge_commits(m.clone, OPTION, h, ""), id="merge_commits, base"),
        pytest.param(lambda m, h: merge_commits(m.clone, h, OPTION, ""), id="merge_commits, head"),
    ],
)
async def test_an_option_never_reaches_git(
    open_mirror: OpenMirror, origin: Origin, call: Callable[[Mirror, str], Awaitable[object]]
) -> None:
    async with open_mirror(origin.remote) as mirror:
        head = await mirror.update()
        with pytest.raises(PipecdError, match="is not the hash of a commit"):
            await call(mirror, head.hash)
        assert not (mirror.clone.directory / "stolen").exists()
