# SPDX-License-Identifier: Apache-2.0
"""Turns what Terraform prints when it fails into an error that says what to do."""

import re
from collections.abc import Callable
from typing import TypeAlias

from pipecd.plugins.terraform.state_lock import StateLock
from pipecd.sdk import PipecdError, Unavailable, UserMistake

_COLOR = re.compile(r"\x1b\[[0-9;]*m")
_FRAME = re.compile(r"^[╷│╵]\s?", re.MULTILINE)
_ERROR = re.compile(r"^\s*Error:\s*(?P<title>.+?)\s*$", re.MULTILINE)
# An error without a cause, which Terraform from 1.6 on prints before the errors in the files.
_INTRODUCTION = re.compile(
    r"^\s*Error:\s*\S+ encountered problems during initiali[sz]ation.*?(?=^\s*Error:)",
    re.MULTILINE | re.DOTALL,
)
_WORKSPACE = re.compile(r'Workspace "(?P<name>[^"]*)" doesn\'t exist')
_LONGEST_REASON = 600

Explanation: TypeAlias = Callable[[str, str, str], PipecdError]
"""(the tool, what it says, its whole output) → the error."""

_CREDENTIALS = (
    "ExpiredToken",
    "RequestExpired",
    "InvalidClientTokenId",
    "InvalidAccessKeyId",
    "UnrecognizedClientException",
    "AuthFailure",
    "security token included in the request is",
    "No valid credential sources",
    "could not find default credentials",
    "invalid_grant",
    "Request had invalid authentication credentials",
    "ExpiredAuthenticationToken",
    "AADSTS",
    "token has expired",
    "oauth2: cannot fetch token",
    "remote state endpoint requires auth",
    "remote state endpoint invalid auth",
    "Required token could not be found",
    "terraform login",
    "tofu login",
)


def without_color(text: str) -> str:
    """Returns the text without colours."""
    return _COLOR.sub("", text)


def plain_text(output: str) -> str:
    """Returns what a command printed, without colours and the frames around errors."""
    return _FRAME.sub("", without_color(output))


def lock_in_the_way(output: str) -> StateLock | None:
    """Returns the lock because of which a command failed."""
    text = plain_text(output)
    return StateLock.read(text) if any(mark in text for mark in _LOCKED) else None


def saves_no_plans(output: str) -> bool:
    """Reports whether a command failed because the backend cannot save plans."""
    return "Saving a generated plan is currently not supported" in plain_text(output)


def explain(tool: str, command: str, output: str, code: int) -> PipecdError:
    """Returns the error of a command of Terraform or OpenTofu that ended with a code."""
    text = plain_text(output)
    said = _reason(_INTRODUCTION.sub("", text)) or f"it ended with {code}"
    if code < 0:
        return Unavailable(
            f"{tool} {command} was ended by signal {-code}",
            hint="check whether the machine of piped has too little memory, and deploy again",
        )
    for marks, explanation in _EXPLANATIONS:
        if any(mark in text for mark in marks):
            return explanation(tool, f"{tool} {command}: {said}", text)
    return UserMistake(f"{tool} {command} failed: {said}")


def _reason(text: str) -> str:
    """Returns the titles of all errors, and what is written below the first one."""
    titles = [match["title"] for match in _ERROR.finditer(text)]
    if not titles:
        lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
        return lines[-1][:_LONGEST_REASON] if lines else ""
    first = next(_ERROR.finditer(text))
    paragraphs = [
        " ".join(paragraph.split())
        for paragraph in re.split(r"\n\s*\n", text[first.end() :].strip("\n"))
        if paragraph.strip() and "Error:" not in paragraph
    ]
    details = paragraphs[:2] if paragraphs and paragraphs[0].startswith("on ") else paragraphs[:1]
    more = len(titles) - 1
    others = f" (and {more} more {'error' if more == 1 else 'errors'})" if more else ""
    return ": ".join((titles[0], *details))[:_LONGEST_REASON] + others


def _locked(tool: str, said: str, text: str) -> PipecdError:
    lock = StateLock.read(text)
    if not lock.id and not lock.who:
        return Unavailable(
            said,
            hint="check that piped can reach the backend of the state and that nobody else uses "
            "it, and deploy again",
        )
    operation = lock.operation.removeprefix("OperationType").lower()
    doing = f" for {operation}" if operation else ""
    since = f" since {lock.created}" if lock.created else ""
    unlock = " ".join((tool, "force-unlock", lock.id)).strip()
    return Unavailable(
        f"the state is locked by {lock.who or 'somebody'}{doing}{since}",
        hint=f"wait until that has ended and deploy again, or run `{unlock}` if it runs no more",
    )


def _stale(*_: str) -> PipecdError:
    return UserMistake(
        "the plan is stale: the state was changed after it was shown, and nothing was applied",
        hint="start a new deployment, which shows a new plan",
    )


def _credentials(_: str, said: str, __: str) -> PipecdError:
    return Unavailable(
        said, hint="the credentials are missing, expired or wrong: renew those that piped uses"
    )


def _core_version(_: str, said: str, __: str) -> PipecdError:
    return UserMistake(
        said, hint="set terraformVersion of the application to a version that its files accept"
    )


def _newer_state(_: str, said: str, __: str) -> PipecdError:
    return UserMistake(
        said,
        hint="set terraformVersion of the application to the one that wrote the state, or later",
    )


def _no_workspace(tool: str, _: str, text: str) -> PipecdError:
    found = _WORKSPACE.search(text)
    name = found["name"] if found else ""
    return UserMistake(
        f'workspace "{name}" does not exist',
        hint=f"create it with `{tool} workspace new {name}`, or correct the workspace of the "
        "application",
    )


_LOCKED = ("Error acquiring the state lock", "Error locking state")
_CORE_VERSION = (
    "Unsupported Terraform Core version",
    "Unsupported OpenTofu Core version",
    "is not compatible with OpenTofu v",
)
_EXPLANATIONS: tuple[tuple[tuple[str, ...], Explanation], ...] = (
    # Without access the state cannot be locked either.
    (_CREDENTIALS, _credentials),
    (_LOCKED, _locked),
    (("Saved plan is stale",), _stale),
    (_CORE_VERSION, _core_version),
    (("which is newer than current", "created by a newer version"), _newer_state),
    (("\" doesn't exist.",), _no_workspace),
)
