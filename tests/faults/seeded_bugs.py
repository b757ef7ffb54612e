# SPDX-License-Identifier: Apache-2.0
"""Bugs that are put into our programs on purpose, to show that the checks of the faults find them.

`shifted_clock` calls `seed` before a program starts. Nothing of this is part of a release. Each bug has
the shortest schedule that shows it.
"""

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from faults.schedule import Step


@dataclass(frozen=True)
class SeededBug:
    """A change that makes a program wrong, what shows it, and the rule that finds it."""

    seed: Callable[[], None]
    steps: Sequence[Step]
    rule: str


def _journal_is_not_written() -> None:
    """A restarted piped knows nothing of stages whose end it could not report."""
    from pipecd.piped.deploy.journal import Journal

    Journal._write = lambda self: None


def _command_is_acknowledged_before_it_is_done() -> None:
    """A command is reported as done, and then forgotten."""
    from pipecd.model.command import CommandStatus
    from pipecd.piped.trigger.commands import SyncCommands

    unchanged: Any = SyncCommands.all

    def acknowledge(self: Any) -> tuple[Any, ...]:
        for command in unchanged.fget(self):
            self.reporting = asyncio.ensure_future(
                self._commands.report(command, CommandStatus.SUCCEEDED)
            )
        return ()

    SyncCommands.all = property(acknowledge)


def _lock_is_not_taken() -> None:
    """Deployments of an application do not wait for each other."""
    from pipecd.piped.deploy import deployer

    started: set[str] = set()

    class Forgetting(dict[str, Any]):
        def __delitem__(self, key: str) -> None:
            self.pop(key, None)

    def next_deployments(
        listed: Sequence[Any], *, busy: Any, completed: Any, unavailable: Any
    ) -> tuple[Any, ...]:
        ended = {*completed, *unavailable, *started}
        chosen = [d for d in listed if d.id not in ended]
        started.update(d.id for d in chosen)
        return tuple(chosen)

    unchanged = deployer.Deployer.run

    async def run(self: Any) -> None:
        self._running = Forgetting()
        await unchanged(self)

    deployer.next_deployments = next_deployments
    deployer.Deployer.run = run


def _older_deployment_runs_last() -> None:
    """The queue of an application begins with what was triggered last."""
    from pipecd.piped.deploy import deployer

    unchanged = deployer.next_deployments

    def next_deployments(listed: Sequence[Any], **options: Any) -> tuple[Any, ...]:
        return unchanged([*reversed(listed)], **options)

    deployer.next_deployments = next_deployments
    deployer.superseded = lambda listed, *, completed: {}


def _sync_state_is_not_reported() -> None:
    """The end of a deployment does not reach the sync state."""
    from pipecd.model.application import SyncStatus
    from pipecd.piped.reporting import sync_states

    unchanged = sync_states.decide_sync_state

    def decide(facts: Any, reported: Any) -> Any:
        is_deploying = reported.status is SyncStatus.DEPLOYING
        return reported if is_deploying else unchanged(facts, reported)

    sync_states.decide_sync_state = decide


def _command_is_lost() -> None:
    """Approvals do not reach the stage that waits for them."""
    from pipecd.model.command import CommandKind

    _without(CommandKind.APPROVE_STAGE)


def _chain_is_cut() -> None:
    """The application that a chain deploys next is not told about it."""
    from pipecd.model.command import CommandKind

    _without(CommandKind.CHAIN_SYNC_APPLICATION)


def _without(kind: Any) -> None:
    """A piped does not see commands of a kind."""
    from pipecd.piped.cache.commands import CommandCache

    unchanged = CommandCache.is_unhandled

    def is_unhandled(self: Any, command: Any) -> bool:
        return command.type != kind and unchanged(self, command)

    CommandCache.is_unhandled = is_unhandled


def _notification_is_lost() -> None:
    """The notification of the end of a deployment is not sent."""
    from pipecd.piped.notify.event import EventType
    from pipecd.piped.notify.notifier import Notifier

    unchanged = Notifier._enqueue

    def enqueue(self: Any, entry: Any) -> None:
        if entry.event.type is not EventType.DEPLOYMENT_SUCCEEDED:
            unchanged(self, entry)

    Notifier._enqueue = enqueue


def _stage_log_is_lost() -> None:
    """Whole stage logs are acknowledged and not stored."""
    from pipecd.controlplane.datastore.stage_logs import StageLogs

    async def checkpoint(self: Any, run: Any, blocks: Any, *, completed: bool) -> None:
        pass

    StageLogs.checkpoint = checkpoint


def _interrupted_stage_fails() -> None:
    """A piped that is killed fails what it ran when it starts again."""
    from pipecd.model.deployment import StageStatus
    from pipecd.piped.deploy import stage

    unchanged = stage.StageExecutor._execute

    async def execute(self: Any, requires: Any) -> Any:
        if StageStatus(self.stage.status) is StageStatus.RUNNING:
            return stage.StageOutcome(StageStatus.FAILURE, "it was interrupted")
        return await unchanged(self, requires)

    stage.StageExecutor._execute = execute


def _late_report_is_accepted() -> None:
    """The control plane stores whatever arrives last."""
    from pipecd.controlplane.usecases import deployment_reports, transitions

    def apply(deployment: Any, report: Any) -> None:
        transitions.stage_of(deployment, report.stage_id).status = report.status

    deployment_reports.apply_stage_status = apply
    transitions._moves_forward = lambda deployment, to: True


def _approval_is_counted_twice() -> None:
    """Two clicks of one person are two approvals."""
    from pipecd.plugins.waitapproval.config import WaitApprovalOptions
    from pipecd.plugins.waitapproval.plugin import WaitApprovalPlugin
    from pipecd.sdk import APPROVED_USERS_KEY, StageResult

    async def execute(self: Any, stage: Any) -> Any:
        approved: list[str] = []
        commands = stage.commands()
        while len(approved) < stage.options(WaitApprovalOptions).min_approver_num:
            approved.append((await anext(commands)).commander)
            await stage.metadata.put({APPROVED_USERS_KEY: ", ".join(approved)})
        return StageResult.succeeded("approved")

    WaitApprovalPlugin.execute = execute


def _log_lines_are_doubled() -> None:
    """A checkpoint that is repeated since its answer was lost is appended again."""
    from pipecd.controlplane.datastore.log_file import LogFile, format_log
    from pipecd.controlplane.datastore.stage_logs import StageLogs, log_path
    from pipecd.proto.model.logblock_pb2 import LogBlock

    unchanged = StageLogs.checkpoint

    async def checkpoint(self: Any, run: Any, blocks: Any, *, completed: bool) -> None:
        file, version = await self._versioned_file(run)
        if file is None or not file.completed:
            await unchanged(self, run, blocks, completed=completed)
            return
        again = list(file.blocks)
        for block in blocks:
            again.append(LogBlock())
            again[-1].CopyFrom(block)
            again[-1].index = again[-2].index + 1
        content = format_log(LogFile(tuple(again), completed=True))
        await self._files.replace(log_path(run), content, version=version)

    StageLogs.checkpoint = checkpoint


def _log_lines_are_lost() -> None:
    """A checkpoint is acknowledged although the line in its middle is not stored."""
    from pipecd.controlplane.datastore.stage_logs import StageLogs

    unchanged = StageLogs.checkpoint

    async def checkpoint(self: Any, run: Any, blocks: Any, *, completed: bool) -> None:
        middle = len(blocks) // 2
        stored = [*blocks[:middle], *blocks[middle + 1 :]] if len(blocks) > 1 else blocks
        await unchanged(self, run, stored, completed=completed)

    StageLogs.checkpoint = checkpoint


def _notifications_overtake_each_other() -> None:
    """The notification of a new deployment is sent after that of its start."""
    from pipecd.piped.notify.event import EventType
    from pipecd.piped.notify.notifier import Notifier

    unchanged = Notifier._enqueue

    def enqueue(self: Any, entry: Any) -> None:
        if entry.event.type is EventType.DEPLOYMENT_TRIGGERED:
            asyncio.get_running_loop().call_later(1.5, unchanged, self, entry)
        else:
            unchanged(self, entry)

    Notifier._enqueue = enqueue


def _deployment_ends_before_its_rollback() -> None:
    """A deployment is stored as failed when its rollback begins."""
    from pipecd.controlplane.usecases import deployment_reports
    from pipecd.model.deployment import DeploymentStatus

    unchanged = deployment_reports.apply_status

    def apply(deployment: Any, status: DeploymentStatus, reason: str) -> None:
        is_rollback = status is DeploymentStatus.ROLLING_BACK
        unchanged(deployment, DeploymentStatus.FAILURE if is_rollback else status, reason)

    deployment_reports.apply_status = apply


def _event_is_acknowledged_before_it_is_pushed() -> None:
    """An event is reported as handled although nothing was committed."""
    from pipecd.piped.eventwatcher.repository_updater import RepositoryUpdater
    from pipecd.piped.eventwatcher.selection import EventOutcome
    from pipecd.proto.model import event_pb2

    async def push(self: Any, branch: str, edits: Sequence[Any]) -> list[tuple[Any, Any]]:
        done = EventOutcome(event_pb2.EVENT_SUCCESS, "updated")
        return [(edit.event, done) for edit in edits]

    RepositoryUpdater._push = push


def _push_is_forgotten_during_a_deployment() -> None:
    """The baseline moves on although no deployment is created while another one is open."""
    from pipecd.piped.planning.deployment import new_deployment
    from pipecd.piped.trigger.creator import DeploymentCreator

    unchanged = DeploymentCreator.create

    async def create(
        self: Any, application: Any, spec: Any, cause: Any, *, commit: Any, repository: Any
    ) -> Any:
        if not any(each.application_id == application.id for each in self._deployments.all):
            return await unchanged(
                self, application, spec, cause, commit=commit, repository=repository
            )
        forgotten = new_deployment(
            application, spec, cause, commit=commit, repository=repository, now=self._now()
        )
        self._baselines.record(application, forgotten)
        return forgotten

    DeploymentCreator.create = create


def _saved_setting_is_lost() -> None:
    """An update of an application is acknowledged and changes nothing."""
    from pipecd.controlplane.usecases.applications import ApplicationUseCases

    async def update(self: Any, id: str, to: Any, *, by: Any) -> None:
        pass

    ApplicationUseCases.update = update


def _pushed_setting_is_lost() -> None:
    """The report of a changed configuration file is acknowledged and changes nothing."""
    from pipecd.controlplane.usecases.application_reports import ApplicationReports

    async def update_configurations(self: Any, infos: Any, *, by: Any) -> None:
        pass

    ApplicationReports.update_configurations = update_configurations


def _preview_leaves_out_what_changes() -> None:
    """A plan preview names no application."""
    from pipecd.piped.planpreview.builder import PreviewBuilder

    async def build(self: Any, command: Any, **options: Any) -> list[Any]:
        return []

    PreviewBuilder.build = build


def _files_stay_open() -> None:
    """Every deployment leaves files open."""
    from pipecd.piped.deploy.journal import Journal

    unchanged = Journal.create.__func__

    def leak(cls: Any, path: Any) -> Any:
        for _ in range(30):
            os.open(os.devnull, os.O_RDONLY)
        return unchanged(cls, path)

    Journal.create = classmethod(leak)


def _traceback() -> None:
    """An error that nobody expects in every deployment."""
    from pipecd.piped.deploy.journal import Journal

    unchanged = Journal.create.__func__

    def fail() -> None:
        raise ZeroDivisionError("a bug")

    def create_and_fail(cls: Any, path: Any) -> Any:
        asyncio.get_running_loop().call_soon(fail)
        return unchanged(cls, path)

    Journal.create = classmethod(create_and_fail)


def _push(application: str, at: float = 0.0, **options: Any) -> Step:
    chosen = {"seconds": 0.2, "lines": 20, "fails": False, "is_old": False, **options}
    return Step(at, "push", is_fault=False, options={"application": application, **chosen})


def _use(name: str, at: float, **options: Any) -> Step:
    return Step(at, name, is_fault=False, options=options)


def _fault(name: str, at: float, **options: Any) -> Step:
    return Step(at, name, is_fault=True, options=options)


_LATE = ("ReportStageStatusChanged", "ReportDeploymentStatusChanged")
_LOGS = ["ReportStageLogsFromLastCheckpoint"]
BUGS: dict[str, SeededBug] = {
    "the journal is not written": SeededBug(
        _journal_is_not_written,
        [
            _push("s00", seconds=8),
            _fault("cut_network", 7.5, seconds=24),
            _fault("kill_piped", 28.0, piped=0, pause=0),
        ],
        "a finished stage never runs again",
    ),
    "a command is acknowledged before it is done": SeededBug(
        _command_is_acknowledged_before_it_is_done,
        [_use("sync", 0.0, application="s00", replica=0)],
        "a command is carried out once",
    ),
    "a lock is not taken": SeededBug(
        _lock_is_not_taken,
        [_push("s00", seconds=4), _push("s00", 2.0, seconds=4)],
        "one running deployment",
    ),
    "an older deployment runs last": SeededBug(
        _older_deployment_runs_last,
        [_push("s00", seconds=9), _push("s00", 4.0), _push("s00", 6.5)],
        "the head runs in the end",
    ),
    "the sync state is not reported": SeededBug(
        _sync_state_is_not_reported, [_push("s00")], "the sync state is right"
    ),
    "a command is lost": SeededBug(_command_is_lost, [_push("s02")], "nothing is stuck"),
    "a chain is cut": SeededBug(_chain_is_cut, [_push("s04")], "a chain reaches its followers"),
    "a notification is lost": SeededBug(
        _notification_is_lost, [_push("s00")], "notifications come at least once"
    ),
    "a stage log is lost": SeededBug(_stage_log_is_lost, [_push("s00")], "no log line is lost"),
    "an interrupted stage fails": SeededBug(
        _interrupted_stage_fails,
        [_push("s00", seconds=8), _fault("kill_piped", 6.0, piped=0, pause=0)],
        "no push is lost",
    ),
    "a late report is accepted": SeededBug(
        _late_report_is_accepted,
        [
            _fault("hold_requests", 0.0, rpcs=list(_LATE), seconds=2),
            _push("s00", seconds=0.5),
            _push("s01", seconds=0.5),
            *(_fault("repeat_requests", at, seed=int(at)) for at in (3.0, 4.0, 5.0, 6.0)),
        ],
        "no status goes back",
    ),
    "an approval is counted twice": SeededBug(
        _approval_is_counted_twice,
        [_push("s02"), *(_use("approve", at, application="s02", person="ann", count=2) for at in (4.0, 7.0, 10.0, 14.0, 18.0, 22.0))],
        "an approval counts once per person",
    ),
    "log lines are doubled": SeededBug(
        _log_lines_are_doubled,
        [
            *(_fault("lose_responses", 0.5 * n, rpcs=_LOGS) for n in range(90)),
            *(_push(name, at) for name, at in (("s00", 0.0), ("s01", 4.0), ("s00", 14.0), ("s01", 24.0))),
        ],
        "no log line is doubled",
    ),
    "log lines are lost": SeededBug(
        _log_lines_are_lost, [_push("s00"), _push("s01")], "no log line is lost"
    ),
    "notifications overtake each other": SeededBug(
        _notifications_overtake_each_other, [_push("s00")], "notifications keep their order"
    ),
    "a deployment ends before its rollback": SeededBug(
        _deployment_ends_before_its_rollback,
        [_push("s01", fails=True)],
        "nothing runs after the end",
    ),
    "an event is acknowledged before it is pushed": SeededBug(
        _event_is_acknowledged_before_it_is_pushed,
        [_use("register_event", 0.0, application="s06")],
        "an event is handled once",
    ),
    "a push is forgotten during a deployment": SeededBug(
        _push_is_forgotten_during_a_deployment,
        [_push("s00", seconds=12), _push("s00", 5.0), _push("s00", 7.5)],
        "no push is lost",
    ),
    "a saved setting is lost": SeededBug(
        _saved_setting_is_lost,
        [_use("edit_application", 0.0, application="s00")],
        "nothing acknowledged is lost",
    ),
    "a pushed setting is lost": SeededBug(
        _pushed_setting_is_lost, [_push("s00")], "a saved setting is stored and used"
    ),
    "a preview leaves out what changes": SeededBug(
        _preview_leaves_out_what_changes,
        [_use("preview", 0.0, application="s00")],
        "a preview says what changes",
    ),
    "files stay open": SeededBug(
        _files_stay_open, [_push("s00"), _push("s01")], "memory, threads and files come back"
    ),
    "an error of the program": SeededBug(_traceback, [_push("s00")], "no traceback"),
}  # fmt: skip
"""The bugs by name."""
