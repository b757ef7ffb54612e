# SPDX-License-Identifier: Apache-2.0
"""Where the parts of HCL end: text with templates in it, brackets, documents in place."""

import re

from pipecd.model.errors import UserMistake

SPACE = re.compile(r"[ \t]*(?:\r(?!\n))?")
COMMENT = re.compile(r"(?:#|//)[^\r\n]*|/\*.*?\*/", re.DOTALL)
IDENTIFIER = re.compile(r"[^\W\d][\w-]*")
NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?(?![\w.])")
_HEREDOC = re.compile(r"<<-?([^\W\d][\w-]*)\r?\n")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))|([$%])\4\{", re.DOTALL)
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\"}
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_DEEPEST = 100


def after_string(text: str, at: int, depth: int = 0) -> int:
    """The place behind text in quotes that begins here; templates in it may hold quotes too."""
    start, at = at, at + 1
    while at < len(text) and text[at] != "\n":
        if text[at] == '"':
            return at + 1
        if text[at] == "\\":
            at += 2
        elif text.startswith(("$${", "%%{"), at):
            at += 3
        elif text.startswith(("${", "%{"), at):
            at = after_bracket(text, at + 1, depth + 1)
        else:
            at += 1
    raise _unended(text, start, "text in quotes")


def after_bracket(text: str, at: int, depth: int = 0) -> int:
    """The place behind a bracket that opens here, with everything that is inside."""
    if depth > _DEEPEST:
        raise UserMistake(f"its values are nested more than {_DEEPEST} deep")
    start, closing = at, _CLOSING[text[at]]
    at += 1
    while at < len(text):
        if text[at] == closing:
            return at + 1
        if text[at] in _CLOSING:
            at = after_bracket(text, at, depth + 1)
        elif text[at] == '"':
            at = after_string(text, at, depth + 1)
        elif found := COMMENT.match(text, at):
            at = found.end()
        else:
            at = after_heredoc(text, at)
    raise _unended(text, start, "a bracket")


def after_heredoc(text: str, at: int) -> int:
    """The place behind a document that begins here, or behind one character of anything else."""
    opened = _HEREDOC.match(text, at)
    if opened is None:
        return at + 1
    closed = re.compile(rf"^[ \t]*{opened[1]}(?=[ \t]*\r?$)", re.MULTILINE).search(
        text, opened.end()
    )
    if closed is None:
        raise _unended(text, at, "a document")
    return closed.end()


def is_plain(raw: str) -> bool:
    """Whether text in quotes has no template in it."""
    bare = re.sub(r"\\.|([$%])\1\{", "", raw)
    return "${" not in bare and "%{" not in bare


def unquoted(raw: str) -> str:
    """What text in quotes stands for."""

    def meaning(found: re.Match[str]) -> str:
        if number := found[1] or found[2]:
            return chr(int(number, 16)) if int(number, 16) < 0x110000 else found[0]
        return f"{found[4]}{{" if found[4] else _ESCAPED.get(found[3], found[0])

    return _ESCAPE.sub(meaning, raw[1:-1])


def quoted(value: str) -> str:
    """A value as text in quotes, in which nothing is a template."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    for character, name in (("\n", "n"), ("\r", "r"), ("\t", "t")):
        escaped = escaped.replace(character, f"\\{name}")
    return '"' + re.sub(r"([$%])(?=\{)", r"\1\1", escaped) + '"'


def _unended(text: str, at: int, what: str) -> UserMistake:
    line = text.count("\n", 0, at) + 1
    return UserMistake(f"it is not valid HCL: {what} in line {line} does not end")
