# SPDX-License-Identifier: Apache-2.0
"""How a plan is shown as a difference between Git and the infrastructure."""

import re

from pipecd.plugins.terraform.plan import Plan
from pipecd.sdk import SyncState, SyncStatus

_START = re.compile(r"will perform the following actions:\s*$")
_END = re.compile(r"^Plan: .*\.$")
_OPENING, _CLOSING = ("{", "["), ("}", "]")
_SIGNS = "+-~"


def sync_state(plan: Plan, text: str, commit: str) -> SyncState:
    """Returns the state of an application whose plan has changes."""
    total = len(plan.changes) or len(plan.outputs)
    summary = (
        f"There are {total} manifests not synced ({plan.imports} imports, {plan.adds} adds, "
        f"{plan.destroys} deletes, {plan.updates} changes)"
    )
    head = f"Diff between the defined state in Git at commit {commit[:7]} and actual live state:"
    details = f"{head}\n\n--- Actual   (LiveState)\n+++ Expected (Git)\n\n{render_plan(text)}"
    return SyncState(SyncStatus.OUT_OF_SYNC, summary, details)


def render_plan(text: str) -> str:
    """Returns the actions of a plan as a diff: the sign of each change is in the first column."""
    rendered: list[str] = []
    signs: list[str] = []
    has_started = False
    for line in text.splitlines():
        if not has_started:
            has_started = bool(_START.search(line))
            continue
        if not line.strip():
            continue
        if _END.match(line):
            return "\n".join((*rendered, line, ""))
        rendered.append(_render_line(line, signs))
    return "\n".join((*rendered, "")) if rendered else ""


def _render_line(line: str, signs: list[str]) -> str:
    """Moves the sign of a line to its start; `signs` are those of the brackets that are open."""
    body = line.strip()
    if body[0] in _CLOSING and signs:
        sign = signs.pop()
        return sign + line[1:] if line[0] == " " else line
    is_opening = body.endswith(_OPENING)
    if is_opening and not signs and "resource" in line:
        start = line.index("resource")
        signs.append(" ")
        return " " * start + line[start:]
    sign = body[0] if body[0] in _SIGNS and body[1:2] in (" ", "/") else " "
    if is_opening:
        signs.append(sign)
    if sign == " ":
        return line
    column = line.index(sign)
    return sign + line[1:column] + " " + line[column + 1 :] if column else line
