# SPDX-License-Identifier: Apache-2.0
"""Validates branches, hashes and paths before they reach a command line or the input of git.

They come from configurations, commands and the content of repositories. None of them may be read
by git as an option, a pattern or a second line of input.
"""

import posixpath
import re

from pipecd.model.errors import NotFound, UserMistake

_HASH = re.compile(r"[0-9a-fA-F]{4,64}")
# The rules of `git check-ref-format`.
_FORBIDDEN_IN_REF = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|/\.|\.lock(?:/|$)|[./]$")


def validate_branch(branch: str) -> str:
    """Returns the ref of a branch; refuses what git would not accept as a branch name."""
    if not branch or branch.startswith(("-", "/", ".")) or _FORBIDDEN_IN_REF.search(branch):
        raise UserMistake(
            f"{branch!r} is not the name of a branch",
            hint="write it as `git branch` shows it",
        )
    return f"refs/heads/{branch}"


def validate_hash(commit: str) -> str:
    """Returns the hash of a commit, full or abbreviated; refuses every other revision."""
    if not _HASH.fullmatch(commit):
        raise NotFound(f"{commit!r} is not the hash of a commit")
    return commit


def validate_path(path: str) -> str:
    """Returns a path relative to the root of a repository in its shortest form."""
    clean = posixpath.normpath(path) if path else "."
    if clean.startswith(("/", "../")) or clean == ".." or "\0" in clean:
        raise UserMistake(f"{path!r} is not a path inside of the repository")
    return clean
