# SPDX-License-Identifier: Apache-2.0
"""Rules about what users get for their requests: settings that were saved, and plan previews."""

from collections.abc import Iterable, Sequence

from faults.applications import FaultyApplication, Platform, Shape
from faults.evidence import Evidence, Requested
from faults.violation import Violation
from pipecd.model.command import CommandStatus
from pipecd.model.deployment import SyncStrategy
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.planpreview_pb2 import ApplicationPlanPreviewResult

_PREVIEW = "a preview says what changes"
# An application is disabled for a second, or until everything is healed.
_DISABLED_WITHIN = 120.0


def edits(evidence: Evidence) -> Iterable[Violation]:
    """An application has the setting that was saved last, or one that may have come after it."""
    by_application: dict[str, list[Requested]] = {}
    for request in evidence.requests:
        if request.kind == "edit":
            by_application.setdefault(request.application, []).append(request)
    for name, requests in by_application.items():
        saved = evidence.providers.get(name)
        if saved is None or saved in _possible(requests):
            continue
        if saved not in {each.value for each in requests} and not any(
            each.is_acknowledged for each in requests
        ):
            # None of them arrived.
            continue
        text = f"{name} has the provider {saved}, which was replaced"
        yield Violation("nothing acknowledged is lost", text, name)


def _possible(requests: Sequence[Requested]) -> set[str]:
    """The values after which none was acknowledged that was sent later than their answer."""
    acknowledged = [each for each in requests if each.is_acknowledged]
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
