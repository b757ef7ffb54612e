# SPDX-License-Identifier: Apache-2.0
"""The results of a plan preview as people and programs read them; pure."""

import base64
import json
from collections.abc import Sequence
from typing import Any

from pipecd.model.application import ApplicationKind
from pipecd.model.deployment import SyncStrategy
from pipecd.proto.model.planpreview_pb2 import (
    ApplicationPlanPreviewResult,
    PlanPreviewCommandResult,
)

App = ApplicationPlanPreviewResult
_BEGIN, _END = "  ---DETAILS_BEGIN---", "  ---DETAILS_END---"
_NOTHING = (
    "\nThere are no updated applications. It means no deployment will be triggered "
    "once this pull request got merged.\n"
)


def sorted_results(
    results: Sequence[PlanPreviewCommandResult], label_keys: Sequence[str]
) -> list[PlanPreviewCommandResult]:
    """Pipeds by id; their applications by label values, then by name."""
    ordered: list[PlanPreviewCommandResult] = []
    for result in sorted(results, key=lambda r: r.piped_id):
        copy = PlanPreviewCommandResult()
        copy.CopyFrom(result)
        apps = sorted(
            copy.results,
            key=lambda a: ([a.labels.get(k, "") for k in label_keys], a.application_name),
        )
        del copy.results[:]
        copy.results.extend(apps)
        ordered.append(copy)
    return ordered


def as_text(results: Sequence[PlanPreviewCommandResult]) -> str:
    """What is printed."""
    good, bad = _split(results)
    pipeds = [r for r in results if r.error]
    if not good and not bad and not pipeds:
        return _NOTHING
    text = ""
    if good:
        text += f"\nHere are plan-preview for {_count(len(good), 'application')}:\n"
        text += "".join(_planned(i, app) for i, app in enumerate(good, 1))
    note = "\nNOTE: An error occurred while building plan-preview for"
    if bad:
        text += f"{note} the following {_several(len(bad), 'application')}:\n"
        text += "".join(_failed(i, app) for i, app in enumerate(bad, 1))
    if pipeds:
        text += f"{note} applications of the following {_several(len(pipeds), 'Piped')}:\n"
        text += "".join(
            f"\n{i}. piped: {p.piped_name} ({p.piped_id})\n  reason: {p.error}\n"
            for i, p in enumerate(pipeds, 1)
        )
    return text


def as_json(results: Sequence[PlanPreviewCommandResult]) -> str:
    """What `--out` holds; empty lists are null."""
    good, bad = _split(results)
    planned = [
        _facts(a)
        | {
            "SyncStrategy": SyncStrategy(a.sync_strategy).name,
            "PlanSummary": a.plan_summary.decode(),
            "PlanDetails": a.plan_details.decode(),
            "NoChange": a.no_change,
            "PluginPlanResults": _plugin_results(a),
        }
        for a in good
    ]
    failed = [
        _facts(a)
        | {
            "Reason": a.error,
            "PlanDetails": a.plan_details.decode(),
            "PluginPlanResults": _plugin_results(a),
        }
        for a in bad
    ]
    pipeds = [
        {
            "PipedID": r.piped_id,
            "PipedName": r.piped_name,
            "PipedURL": r.piped_url,
            "Reason": r.error,
        }
        for r in results
        if r.error
    ]
    return json.dumps(
        {
            "Applications": planned or None,
            "FailureApplications": failed or None,
            "FailurePipeds": pipeds or None,
        }
    )


def _split(results: Sequence[PlanPreviewCommandResult]) -> tuple[list[App], list[App]]:
    apps = [app for r in results if not r.error for app in r.results]
    return [a for a in apps if not a.error], [a for a in apps if a.error]


def _count(n: int, noun: str) -> str:
    return f"1 {noun}" if n == 1 else f"{n} {noun}s"


def _several(n: int, noun: str) -> str:
    return noun if n == 1 else f"{n} {noun}s"


def _all_plugins(app: App) -> str:
    return ", ".join(app.plugin_names)


def _planned_plugins(app: App) -> str:
    return ", ".join(dict.fromkeys(r.plugin_name for r in app.plugin_plan_results))


def _title(i: int, app: App, plugins: str) -> str:
    env = f", env: {app.labels['env']}" if app.labels.get("env") else ""
    if app.plugin_names:
        return f"\n{i}. app: {app.application_name}{env}, {plugins}\n"
    kind = ApplicationKind(app.application_kind).name
    return f"\n{i}. app: {app.application_name}{env}, kind: {kind}\n"


def _planned(i: int, app: App) -> str:
    text = _title(i, app, f"plan plugin(s): {_planned_plugins(app)}")
    text += f"  sync strategy: {SyncStrategy(app.sync_strategy).name}\n"
    if not app.plugin_names:
        return f"{text}  summary: {app.plan_summary.decode()}\n{_details(app)}"
    text += f"  plugin(s): {_all_plugins(app)}\n  summary:\n"
    for r in app.plugin_plan_results:
        text += f"  - {r.plugin_name}({r.deploy_target}): {r.plan_summary.decode()}\n"
    return text + "  details:\n\n" + _plugin_details(app)


def _failed(i: int, app: App) -> str:
    text = _title(i, app, f"plugin(s): {_all_plugins(app)}") + f"  reason: {app.error}\n"
    if app.plugin_plan_results:
        return text + "  details:\n\n" + _plugin_details(app)
    return text + (_details(app) if app.plan_details else "")


def _details(app: App) -> str:
    return f"  details:\n\n{_BEGIN}\n{app.plan_details.decode()}\n{_END}\n"


def _plugin_details(app: App) -> str:
    return "".join(
        f"  - {r.plugin_name}({r.deploy_target}):\n{_BEGIN}\n{r.plan_details.decode()}\n{_END}\n\n"
        for r in app.plugin_plan_results
    )


def _facts(app: App) -> dict[str, Any]:
    return {
        "ApplicationID": app.application_id,
        "ApplicationName": app.application_name,
        "ApplicationURL": app.application_url,
        "ApplicationKind": ApplicationKind(app.application_kind).name,
        "ApplicationDirectory": app.application_directory,
        "Env": app.labels.get("env", ""),
        "PlannedPluginNames": _planned_plugins(app),
        "AllPluginNames": _all_plugins(app),
    }


def _plugin_results(app: App) -> list[dict[str, str]] | None:
    return [
        {
            "plugin_name": r.plugin_name,
            "deploy_target": r.deploy_target,
            "plan_summary": base64.b64encode(r.plan_summary).decode(),
            "plan_details": base64.b64encode(r.plan_details).decode(),
            "diff_language": r.diff_language,
        }
        for r in app.plugin_plan_results
    ] or None
