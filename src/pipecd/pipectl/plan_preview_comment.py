# SPDX-License-Identifier: Apache-2.0
"""The result of a plan preview as a comment on a pull request, in Markdown."""

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from urllib.parse import quote

from pipecd.model.deployment import SyncStrategy
from pipecd.proto.model.planpreview_pb2 import (
    ApplicationPlanPreviewResult,
    PlanPreviewCommandResult,
)

# CI jobs find the comment of an earlier run by it, and replace that.
MARKER = "<!-- pipecd plan-preview -->"
# GitHub accepts 65,536 characters.
MAX_LENGTH = 60_000
_MIN_FENCE = 3
_SAFE_IN_URL = ":/?#=&%"
# The characters around the details of an application, with the longest name.
_FRAME = 200
_NO_PIPED = (
    "There is no preview: no enabled piped has this repository and base branch. The remote must be "
    "written as in the configuration of the piped."
)
_CUT = "\n… the rest is in the log of the job\n"

# Hosts make links of URLs, domains, users, issues, merge requests, labels and snippets;
# a space without width after their first character keeps them from it.
_REFERENCE = re.compile(r"[@#!~%$&^](?=\S)|:(?=//)|www(?=\.)|\bGH(?=-)", re.IGNORECASE)
_NO_REFERENCE = "\u200b"

App = ApplicationPlanPreviewResult


def as_markdown(
    results: Sequence[PlanPreviewCommandResult],
    head_commit: str,
    pages: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Returns the comment; details are folded, and shortened if there are too many.

    `pages` are the addresses in the console, by command.
    """
    apps = [app for result in results if not result.error for app in result.results]
    planned, failed = [a for a in apps if not a.error], [a for a in apps if a.error]
    pipeds = [result for result in results if result.error]
    lines = [MARKER, f"### Plan preview of {_code(head_commit[:7])}", ""]
    if not results:
        lines.append(_NO_PIPED)
    elif not apps and not pipeds:
        lines.append("No application changes: merging deploys nothing.")
    if planned:
        lines += ["| Application | Strategy | Changes |", "|---|---|---|"]
        lines += [_row(app) for app in planned]
    lines += [f"- :x: {_link(app)}: {_text(app.error)}" for app in failed]
    lines += [f"- :x: piped {_text(p.piped_name)}: {_text(p.error)}" for p in pipeds]
    links = [
        _page_link(result, pages[r]) for result in results if (r := result.command_id) in pages
    ]
    lines += ["", f"See it in the console: {', '.join(links)}"] if links and apps else []
    text = "\n".join([*lines, ""])
    text = text[:MAX_LENGTH]
    room = (MAX_LENGTH - len(text)) // max(1, len(apps)) - _FRAME
    return text + "".join(_folded(app, room) for app in apps)


def _row(app: App) -> str:
    summaries = [
        f"{_text(r.plugin_name)} ({_text(r.deploy_target)}): {_text(r.plan_summary.decode())}"
        for r in app.plugin_plan_results
    ]
    summary = "<br>".join(summaries) or _text(app.plan_summary.decode())
    return f"| {_link(app)} | {SyncStrategy(app.sync_strategy).name} | {summary or 'no preview'} |"


def _folded(app: App, room: int) -> str:
    details = _details(app)
    if not details or room < len(_CUT):
        return ""
    if len(details) > room:
        details = details[: room - len(_CUT)] + _CUT
    longest = max((len(run) for run in re.findall("`+", details)), default=0)
    # The content cannot end the block: its fence is longer than any in it.
    fence = "`" * max(_MIN_FENCE, longest + 1)
    title = f"<summary>{_text(app.application_name)}</summary>"
    return f"\n<details>{title}\n\n{fence}diff\n{details}\n{fence}\n\n</details>\n"


def _details(app: App) -> str:
    parts = [r.plan_details.decode().strip("\n") for r in app.plugin_plan_results]
    return "\n\n".join(part for part in parts if part) or app.plan_details.decode().strip("\n")


def _link(app: App) -> str:
    env = f" ({_text(app.labels['env'])})" if app.labels.get("env") else ""
    url = quote(app.application_url, safe=_SAFE_IN_URL)
    return f"[{_text(app.application_name)}]({url}){env}"


def _page_link(result: PlanPreviewCommandResult, url: str) -> str:
    return f"[{_text(result.piped_name) or 'piped'}]({quote(url, safe=_SAFE_IN_URL)})"


def _text(text: str) -> str:
    """The text in one line, so that Markdown and HTML show it as it is.

    The author of a branch chooses most of it, so nothing in it becomes a link or a mention.
    """
    # Line breaks and characters that change the direction of the text become spaces.
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    marked = _REFERENCE.sub(lambda match: match[0] + _NO_REFERENCE, line)
    escaped = re.sub(r"([\\`*_{}\[\]()#!|~])", r"\\\1", marked)
    html = escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return html.replace(_NO_REFERENCE, "&#8203;")


def _code(text: str) -> str:
    return f"`{text.replace('`', '')}`"
