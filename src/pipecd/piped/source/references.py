# SPDX-License-Identifier: Apache-2.0
"""What a file says about files above its own directory.

Tools reach out of an application's directory by the path `..`: a Kustomize base, a Terraform
module, values of Helm, a library of a script. Such paths can be read out of any text.
"""

import posixpath
import re
from dataclasses import dataclass

# The path `..` between the marks that end a word in YAML, HCL, JSON and shells; what follows it
# counts up to the first character that a program would have to compute.
_UPWARD = re.compile(
    rb"(?:(?<=^)|(?<=[/\s\"'`=:,;(){}\[\]<>|&@!]))\.\.(?=[/\s\"'`,;(){}\[\]<>|&!\\]|$)"
    rb"((?:/+[^/\s\"'`:,;(){}\[\]<>|&!$*?\\#%]+)*)",
    re.MULTILINE,
)
# Ways to climb that do not write `..`.
_CLIMBING = re.compile(
    rb"find_in_parent_folders|get_repo_root|(?:to|from)_repo_root|get_parent_terragrunt_dir"
    rb"|show-toplevel|\bdirname\W+(?:PWD|pwd|dirname)\b|\.parent\.parent\b|\.parents\[|\bOLDPWD\b"
)
_TEXT_SAMPLE = 8000


@dataclass(frozen=True)
class References:
    """Paths that a file names above itself, without their leading `..`.

    The end of one may be missing where a name has a space in it or is computed by a program.
    `climbs` means that the file may reach anything: it names a directory above, or computes it.
    """

    paths: frozenset[str] = frozenset()
    climbs: bool = False


NONE = References()


def references(content: bytes) -> References:
    """Reads the references out of the content of a file; what is no text has none."""
    if b"\0" in content[:_TEXT_SAMPLE] or (b".." not in content and not _CLIMBING.search(content)):
        return NONE
    tails = {_below(match[1].decode("utf-8", "surrogateescape")) for match in _upward(content)}
    climbs = "" in tails or _CLIMBING.search(content) is not None
    return References(frozenset(tails - {""}), climbs)


def link_reference(target: str) -> References:
    """The same for a symbolic link."""
    if ".." not in target.split("/"):
        return NONE
    below = _below(target)
    return References(frozenset({below}) - {""}, climbs=not below)


def _upward(content: bytes) -> "list[re.Match[bytes]]":
    return list(_UPWARD.finditer(content))


def _below(tail: str) -> str:
    """What is left of a path when every step upwards has been taken."""
    names: list[str] = []
    for name in tail.split("/"):
        if name == ".." and names:
            names.pop()
        elif name not in ("", ".", ".."):
            names.append(name)
    return posixpath.join(*names) if names else ""
