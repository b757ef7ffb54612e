# SPDX-License-Identifier: Apache-2.0
"""Rules about what users get for their requests: settings that were saved or pushed, and plan previews."""

from collections.abc import Iterable, Mapping, Sequence

from faults.applications import FaultyApplication, Platform, Shape, setting_of
from faults.evidence import FOREVER, Evidence, Requested
from faults.execution_rules import last_deployment
from faults.violation import Violation
from pipecd.model.command import CommandStatus
from pipecd.model.deployment import DeploymentStatus, SyncStrategy
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.planpreview_pb2 import ApplicationPlanPreviewResult

_PREVIEW = "a preview says what changes"
_SETTING = "a saved setting is stored and used"
# How long a piped may deploy with the registration of before, with all faults of a round, in seconds.
_USED_WITHIN = 60.0
# An application is disabled for a second, or until everything is healed.
_DISABLED_WITHIN = 120.0


def edits(evidence: Evidence) -> Iterable[Violation]:
    """An application has the setting that was saved last, or one that may have come after it."""
    by_application: dict[str, list[Requested]] = {}
    for request in evidence.requests:
        if request.kind == "edit":
            by_application.setdefault(request.application, []).append(request)
    for name, requests in by_application.items():
        saved = evidence.settings.get(name)
        if saved is None or saved in _possible(requests):
            continue
        if saved not in {each.value for each in requests} and not any(
            each.is_acknowledged for each in requests
        ):
            # None of them arrived.
            continue
        text = f"{name} has the setting {saved}, which was replaced"
        yield Violation("nothing acknowledged is lost", text, name)
    yield from _unused_edits(evidence, by_application)


def _unused_edits(
    evidence: Evidence, by_application: Mapping[str, Sequence[Requested]]
) -> Iterable[Violation]:
    """Deployments with a configuration file that had been replaced long before they were created."""
    for each in evidence.deployments:
        created = evidence.reported_created.get(each.id, 0.0)
        requests = [r for r in by_application.get(each.application_name, ()) if r.at <= created]
        known = created - _USED_WITHIN
        if not any(r.is_acknowledged and r.answered_at <= known for r in requests):
            continue
        config = each.git_path.config_filename
        if config not in {value.split()[-1] for value in _possible(requests, at=known)}:
            text = f"{each.id} has the file {config}, which was replaced before it was created"
            yield Violation(_SETTING, text, each.application_name)


def running_settings(evidence: Evidence) -> Iterable[Violation]:
    """What runs has the settings of its revision, each time that it starts."""
    for line in evidence.truth:
        key = (line.application, line.commit)
        nonce = line.label if line.what == "apply" else evidence.revisions.get(key)
        if line.setting and nonce and line.setting != setting_of(nonce):
            text = f"{line.what} of {line.application} has {line.setting} at revision {nonce}"
            yield Violation(_SETTING, text, line.application)
    for name, (nonce, setting) in evidence.cluster_settings.items():
        last = last_deployment(evidence, name)
        is_success = last is not None and DeploymentStatus(last.status) is DeploymentStatus.SUCCESS
        if is_success and setting != setting_of(nonce):
            yield Violation(_SETTING, f"{name} has {setting} at revision {nonce}", name)


def _possible(requests: Sequence[Requested], *, at: float = FOREVER) -> set[str]:
    """The values after which none was acknowledged, until then, that was sent later than their answer."""
    acknowledged = [each for each in requests if each.is_acknowledged and each.answered_at <= at]
    return {
        request.value
        for request in requests
        if not any(other.at > request.answered_at for other in acknowledged)
    }


def previews(evidence: Evidence) -> Iterable[Violation]:
    """A preview names the application that was changed, once, and what changes; or says why not."""
    applications = {each.name: each for each in evidence.applications}
    for request in evidence.requests:
        command = evidence.commands.get(request.id)
        application = applications.get(request.application)
        if request.kind != "preview" or command is None or application is None:
            continue
        if problem := _preview_problem(evidence, request, command, application):
            yield Violation(_PREVIEW, f"preview {command.id} {problem}", request.application)


def _preview_problem(
    evidence: Evidence, request: Requested, command: Command, application: FaultyApplication
) -> str:
    """What is wrong with the result of one piped; an empty string if nothing is."""
    name, result = application.name, evidence.previews.get(command.id)
    if CommandStatus(command.status) is not CommandStatus.SUCCEEDED:
        return ""
    if result is None:
        return "has no result"
    own = [each for each in result.results if each.application_name == name]
    if command.piped_id != evidence.piped_of(name):
        return f"names {name}, which another piped deploys" if own else ""
    if application.shape is Shape.FOLLOWER or _is_disabled(evidence, request):
        # Commits do not deploy it.
        return ""
    if len(own) != 1:
        return f"names {name} {len(own)} times"
    return "" if own[0].error else _content_problem(own[0], application, request.value)


def _content_problem(
    result: ApplicationPlanPreviewResult, application: FaultyApplication, nonce: str
) -> str:
    """What is missing of a change that replaces the revision of an application by another one."""
    details = b"\n".join(each.plan_details for each in result.plugin_plan_results).decode()
    if application.platform is Platform.SCRIPT:
        # Its plugin describes no changes: the strategy is all there is.
        strategy = SyncStrategy(result.sync_strategy)
        return "" if strategy is SyncStrategy.PIPELINE else f"plans {strategy.name}"
    if result.no_change:
        return "says that nothing changes"
    changed = "run.sh" if application.platform is Platform.PROCESS else nonce
    return "" if changed in details else f"does not say that {changed} changes"


def _is_disabled(evidence: Evidence, preview: Requested) -> bool:
    return any(
        each.kind == "disable"
        and each.application == preview.application
        and abs(each.at - preview.at) < _DISABLED_WITHIN
        for each in evidence.requests
    )
