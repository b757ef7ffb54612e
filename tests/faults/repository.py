# SPDX-License-Identifier: Apache-2.0
"""The repository that users and pipeds push to: a bare one, as on a Git host."""

import io
import os
import subprocess
import tarfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

BRANCH = "main"
_ATTEMPTS = 20
# What git says if a branch moved, or is moved now.
_MOVED = (b"not updating", b"cannot lock ref")
_NOT_PUSHED = "the branch moved whenever a commit was pushed"


@dataclass(frozen=True)
class Repository:
    """A bare repository, whose branches users move at once or not at all.

    Nothing of them is ever in a work tree, where a push of a piped could become part of it.
    """

    path: Path

    @classmethod
    def begin(cls, path: Path) -> "Repository":
        path.mkdir(parents=True)
        begun = cls(path)
        begun.git("init", "--quiet", "--bare", "--initial-branch", BRANCH)
        # A force push leaves behind commits that the checks have to know.
        begun.git("config", "core.logAllRefUpdates", "always")
        return begun

    @property
    def remote(self) -> str:
        return f"file://{self.path}"

    def git(self, *arguments: str) -> str:
        return self._run(arguments, b"").decode("utf-8", "replace").strip()

    def commit(
        self,
        files: Mapping[str, str],
        message: str = "a change",
        *,
        branch: str = BRANCH,
        at: float | None = None,
    ) -> str:
        """Pushes a commit on top of the main branch, whoever else pushes; returns its hash."""
        changes = [_file(name, text.encode()) for name, text in files.items()]
        for _ in range(_ATTEMPTS):
            if commit := self._push(f"refs/heads/{BRANCH}^0", changes, message, branch, at):
                return commit
        raise TimeoutError(_NOT_PUSHED)

    def begin_history(self, files: Mapping[str, bytes], message: str) -> str:
        """Pushes the first commit."""
        changes = [_file(name, content) for name, content in files.items()]
        return self._push("", changes, message, BRANCH, None)

    def force_push(self, revision: str) -> None:
        """Sets the main branch to another commit, whatever it is at."""
        self.git("update-ref", f"refs/heads/{BRANCH}", self.git("rev-parse", revision))

    def revert(self) -> None:
        """Pushes the content before the last commit on top of it."""
        for _ in range(_ATTEMPTS):
            head = self.git("rev-parse", BRANCH)
            tree = self.git("rev-parse", f"{head}~1^{{tree}}")
            message = f'Revert "{self.git("show", "--no-patch", "--format=%s", head)}"'
            if self._push(head, [f'M 040000 {tree} ""\n'.encode()], message, BRANCH, None):
                return
        raise TimeoutError(_NOT_PUSHED)

    def files(self) -> dict[str, bytes]:
        """The files of the main branch."""
        archive = self._run(("archive", "--format=tar", BRANCH), b"")
        with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
            return {
                member.name: content.read()
                for member in opened.getmembers()
                if (content := opened.extractfile(member)) is not None
            }

    def _push(
        self, parent: str, changes: Sequence[bytes], message: str, branch: str, at: float | None
    ) -> str:
        """Returns the hash of the commit; an empty string if the branch has moved meanwhile."""
        text = message.encode()
        seconds = int(time.time() if at is None else at)
        stream = (
            f"commit refs/heads/{branch}\nmark :1\n"
            f"committer Ann <ann@example.com> {seconds} +0000\n"
            f"data {len(text)}\n"
        ).encode() + text
        stream += f"\nfrom {parent}\n".encode() if parent else b"\n"
        stream += b"".join(changes) + b"\nget-mark :1\ndone\n"
        try:
            return self._run(("fast-import", "--quiet", "--done"), stream).decode().strip()
        except subprocess.CalledProcessError as e:
            if any(words in e.stderr.lower() for words in _MOVED):
                return ""
            raise

    def _run(self, arguments: Sequence[str], stream: bytes) -> bytes:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
        return subprocess.run(
            ["git", *arguments],
            cwd=self.path,
            env={**kept, "GIT_CONFIG_GLOBAL": os.devnull},
            input=stream,
            check=True,
            capture_output=True,
        ).stdout


def _file(name: str, content: bytes) -> bytes:
    return b"M 100644 inline %b\ndata %d\n%b\n" % (name.encode(), len(content), content)
