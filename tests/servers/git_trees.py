# SPDX-License-Identifier: Apache-2.0
"""Commits whose trees no working tree could have: nested, repeated and huge directories."""

import subprocess

from servers.origin import Origin


def blob(origin: Origin, content: bytes) -> str:
    """Stores a file and returns its entry in a tree, without the name."""
    return f"100644 blob {_git(origin, 'hash-object', '-w', '--stdin', text=content)}"


def tree(origin: Origin, entries: dict[str, str]) -> str:
    """Stores a directory and returns its entry in a tree, without the name."""
    lines = "".join(f"{entry}\t{name}\0" for name, entry in entries.items())
    id_ = _git(origin, "mktree", "-z", "--missing", text=lines.encode())
    return f"040000 tree {id_}"


def nested(origin: Origin, *, width: int, levels: int, leaf: str = "") -> str:
    """Returns directories in each of which are `width` directories, `levels` deep.

    `leaf` is the entry of a file in each of the last ones; without it they are empty.
    """
    entry = tree(origin, {"leaf": leaf} if leaf else {})
    for _ in range(levels):
        entry = tree(origin, {f"d{n}": entry for n in range(width)})
    return entry


def graft(origin: Origin, directory: str, entries: dict[str, str]) -> str:
    """Commits entries to a directory of the root at HEAD, without a working tree; returns the hash."""
    at_root = _entries(origin, "HEAD")
    inside = _entries(origin, f"HEAD:{directory}") if directory in at_root else {}
    root = tree(origin, at_root | {directory: tree(origin, inside | entries)})
    commit = _git(
        origin, "commit-tree", root.split(" ")[2], "-p", "HEAD", "-m", "a change", text=b""
    )
    origin.git("update-ref", "HEAD", commit)
    return commit


def _entries(origin: Origin, revision: str) -> dict[str, str]:
    lines = _git(origin, "ls-tree", "-z", revision, text=b"").split("\0")
    pairs = (line.partition("\t") for line in lines if line)
    return {name: entry for entry, _, name in pairs}


def _git(origin: Origin, *arguments: str, text: bytes) -> str:
    user = ["-c", "user.name=Ann", "-c", "user.email=ann@example.com"]
    done = subprocess.run(
        ["git", *user, *arguments], cwd=origin.path, input=text, check=True, capture_output=True
    )
    return done.stdout.decode().strip("\n")
