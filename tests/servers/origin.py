# SPDX-License-Identifier: Apache-2.0
"""Git repositories with commits, branches and remotes for the tests."""

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path

from pipecd.git.mirror import Mirror

OpenMirror = Callable[..., AbstractAsyncContextManager[Mirror]]


@dataclass(frozen=True)
class Origin:
    """A repository with a working tree; nothing of this machine decides how git behaves in it."""

    path: Path
    variables: Mapping[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def begin(cls, path: Path, **variables: str) -> "Origin":
        """Makes an empty one; `variables` are for every git command in it."""
        path.mkdir(parents=True, exist_ok=True)
        made = cls(path, variables)
        made.git("init", "-q", "-b", "main")
        return made

    @property
    def remote(self) -> str:
        return f"file://{self.path}"

    def git(self, *arguments: str | bytes) -> str:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
        done = subprocess.run(
            ["git", "-c", "user.name=Ann", "-c", "user.email=ann@example.com", *arguments],
            cwd=self.path,
            env={**kept, "GIT_CONFIG_GLOBAL": os.devnull, **self.variables},
            check=True,
            capture_output=True,
        )
        return done.stdout.decode("utf-8", "replace").strip()

    def commit(
        self, files: Mapping[str, str | bytes | None] | None = None, message: str = "a change"
    ) -> str:
        """Writes files, deletes those without a content, and commits; returns the hash."""
        for name, content in (files or {}).items():
            file = self.path / name
            if content is None:
                file.unlink()
                continue
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content.encode() if isinstance(content, str) else content)
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "--allow-empty-message", "-m", message)
        return self.git("rev-parse", "HEAD")

    def import_commits(self, commits: Sequence[Mapping[str, str]]) -> list[str]:
        """Puts a commit for each of the changes on main, in one run of Git; returns the hashes.

        The working tree is not changed.
        """
        stream: list[str] = []
        for files in commits:
            stream.append("commit refs/heads/main")
            stream.append("committer Ann <ann@example.com> 1700000000 +0000\ndata 1\nx")
            for path, text in files.items():
                stream.append(f"M 100644 inline {path}\ndata {len(text.encode())}\n{text}")
        subprocess.run(
            ["git", "fast-import", "--quiet", "--force"],
            cwd=self.path,
            input="\n".join([*stream, ""]).encode(),
            check=True,
        )
        return self.git("rev-list", "--reverse", f"-{len(commits)}", "main").split()

    def branch(self, files: Mapping[str, str]) -> tuple[str, str]:
        """Commits to a new branch and returns its name and hash."""
        self.git("checkout", "--quiet", "-b", "feature")
        commit = self.commit(files, "a proposal")
        self.git("checkout", "--quiet", "main")
        return "feature", commit


NewOrigin = Callable[[str], Origin]
