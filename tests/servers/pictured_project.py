# SPDX-License-Identifier: Apache-2.0
"""A project as a team has it after some weeks, for pictures of the console.

Times are those of a control plane whose clock is set to each moment of the history in turn, and to
the present at the end, so that what the pages say about them is what people would read.
"""
# Applications and pipeds of v0 use fields that the protobuf files call deprecated.
# pyright: reportDeprecated=false

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from pipecd.controlplane.auth.subject import ApiKeyCaller, PipedCaller, User
from pipecd.controlplane.bus.signal import Bus
from pipecd.controlplane.datastore.stage_logs import StageRun
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.jobs.chains import ChainController
from pipecd.controlplane.jobs.insights import (
    ChunkWriter,
    MonthWriter,
    collect_applications,
    collect_deployments,
)
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.chains import Matcher
from pipecd.controlplane.usecases.commands import CommandResult
from pipecd.controlplane.usecases.events import EventReport
from pipecd.model.application import SyncStatus
from pipecd.model.clock import Now, to_unix
from pipecd.model.command import CommandStatus
from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.model.document import to_json
from pipecd.observe.version import build_version
from pipecd.proto.model import application_pb2, event_pb2
from pipecd.proto.model import common_pb2 as common
from pipecd.proto.model.application_pb2 import Application, ApplicationSyncState
from pipecd.proto.model.common_pb2 import ApplicationInfo
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.model.logblock_pb2 import ERROR, LogBlock
from pipecd.proto.model.piped_pb2 import Piped
from pipecd.proto.model.planpreview_pb2 import (
    ApplicationPlanPreviewResult,
    PlanPreviewCommandResult,
)
from pipecd.proto.service.api_pb2 import RegisterEventRequest, RequestPlanPreviewRequest
from pipecd.proto.service.deployment_changes_pb2 import DeploymentChanges
from pipecd.proto.service.lease_pb2 import AcquirePipedLeaseRequest
from pipecd.proto.service.piped_pb2 import ReportPipedMetaRequest
from pipecd.proto.service.pluginfailures_pb2 import PluginFailure
from servers.console_pages import ShownObjects
from servers.pictured_applications import (
    APPLICATIONS,
    CURRENT,
    DAY,
    HOUR,
    MINUTE,
    PIPEDS,
    PicturedApplication,
    PicturedPiped,
)
from servers.pictured_history import AUTHORS, History, Release, commit_hash, reference
from servers.pictured_logs import ANALYSIS_LOG, APPROVAL_LOG, CANARY_LOG, FAILED_ANALYSIS_LOG
from servers.pictured_resources import CRASHED_POD, DRIFT, shop_resources
from servers.pictured_settings import fill_settings
from servers.sample_diffs import kubernetes_result, results_of_all_platforms

DAYS = 75
UPDATED = 'Successfully updated 1 files in the "apps" repository'
REMOTE = "git@git.example:shop/apps.git"
CONFIG = """\
apiVersion: pipecd.dev/v1beta1
kind: Piped
spec:
  projectID: shop
  apiAddress: pipecd.example:443
  repositories:
    - repoID: apps
      remote: git@git.example:shop/apps.git
      branch: main
"""


@dataclass
class PictureProject:
    """Fills a project; `moment` is the clock of its control plane."""

    cases: UseCases
    stores: Stores
    bus: Bus
    admin: User
    moment: list[datetime]
    present: datetime
    pipeds: dict[str, PipedCaller] = field(default_factory=dict[str, PipedCaller])
    applications: dict[str, Application] = field(default_factory=dict[str, Application])
    histories: dict[str, History] = field(default_factory=dict[str, History])
    latest: dict[str, Deployment] = field(default_factory=dict[str, Deployment])
    traced: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def now(self) -> Now:
        return lambda: self.moment[0]

    @property
    def time(self) -> int:
        """The present in Unix seconds."""
        return to_unix(self.present)

    def at(self, seconds_ago: float) -> int:
        """Sets the clock to so many seconds before the present, and returns that time."""
        self.moment[0] = self.present - timedelta(seconds=seconds_ago)
        return to_unix(self.moment[0])

    async def fill(self) -> ShownObjects:
        for piped in sorted(PIPEDS, key=lambda piped: -piped.registered_ago):
            await self._piped(piped)
        for number, pictured in enumerate(APPLICATIONS):
            await self._application(pictured, number)
        await fill_settings(self.cases, self.admin, self.at, self.pipeds["tokyo"])
        await self._past()
        chain = await self._chains()
        waiting, failed, succeeded = await self._today()
        await self._traces()
        event = await self._events()
        await self._live_states()
        preview = await self._previews()
        await self._collect()
        self.at(0)
        await self._connections()
        return ShownObjects(
            application=self.applications["checkout"].id,
            piped=self.pipeds["tokyo"].piped,
            waiting=waiting.id,
            succeeded=succeeded.id,
            failed=failed.id,
            chain=chain,
            event=event,
            preview=preview,
            resource=f"tokyo/{CRASHED_POD}",
            text_of_log="canary",
            day=self.time // DAY * DAY,
        )

    async def _piped(self, spec: PicturedPiped) -> None:
        self.at(spec.registered_ago)
        registered = await self.cases.pipeds.register(spec.name, spec.description, by=self.admin)
        caller = self.pipeds[spec.name] = PipedCaller(self.admin.project, registered.id)
        if spec.seen_ago is None:
            return
        self.at(spec.started_ago)
        repository = common.ApplicationGitRepository(id="apps", remote=REMOTE, branch="main")
        meta = ReportPipedMetaRequest(
            version=build_version() if spec.version == CURRENT else spec.version,
            repositories=[repository],
            plugins=[Piped.Plugin(name=n, deploy_targets=targets) for n, targets in spec.plugins],
            platform_providers=[
                Piped.PlatformProvider(name=name, type=type) for type, name in spec.providers
            ],
            config=CONFIG,
        )
        await self.cases.pipeds.report_meta(meta, by=caller)
        if spec.version == CURRENT:
            lease, leases = AcquirePipedLeaseRequest(host=f"{spec.name}-worker-2"), self.cases
            lease.ticket = (await leases.piped_leases.acquire(lease, by=caller))[0].ticket
            await leases.piped_leases.acquire(lease, by=caller)
        if spec.is_disabled:
            await self.cases.pipeds.disable(registered.id, by=self.admin)

    async def _connections(self) -> None:
        """Reports that each piped was connected as long ago as its row says."""
        for spec in PIPEDS:
            if spec.seen_ago is not None:
                self.at(spec.seen_ago)
                await self.cases.pipeds.report_stat(b"up 1", by=self.pipeds[spec.name])
        self.at(0)
        failure = PluginFailure(
            plugin="analysis", reason="the provider prometheus-dev has no address", since=self.time
        )
        await self.cases.pipeds.report_plugin_failures([failure], by=self.pipeds["tokyo"])

    async def _application(self, spec: PicturedApplication, number: int) -> None:
        self.at((DAYS - number) * DAY if spec.every else 5 * HOUR)
        draft = Application(
            name=spec.name,
            piped_id=self.pipeds[spec.piped].piped,
            git_path=common.ApplicationGitPath(
                repo=common.ApplicationGitRepository(id="apps", remote=REMOTE, branch="main"),
                path=f"{spec.piped}/{spec.name}",
                config_filename="app.pipecd.yaml",
                url=f"https://git.example/shop/apps/tree/main/{spec.piped}/{spec.name}",
            ),
            labels=dict(spec.labels),
            description=spec.description,
        )
        if spec.provider:
            draft.kind = common.ApplicationKind.Value(spec.plugin)
            draft.platform_provider = draft.cloud_provider = spec.provider
        else:
            draft.deploy_targets_by_plugin[spec.plugin].deploy_targets.extend(spec.targets)
        id = await self.cases.applications.add(draft, by=self.admin)
        self.applications[spec.name] = await self.cases.applications.get(id, by=self.admin)
        self.histories[spec.name] = History(spec, self.applications[spec.name])

    async def _past(self) -> None:
        """The deployments of weeks in the order of their triggers."""
        releases = sorted(
            (release.at, name, release)
            for name, history in self.histories.items()
            for release in history.releases(self.time, DAYS)
        )
        for _, name, release in releases:
            await self._deploy(name, release)

    async def _deploy(self, name: str, release: Release, **fields: str) -> Deployment:
        """Stores a deployment and what its application has of it."""
        deployment = self.histories[name].deployment(release, self.time)
        for key, value in fields.items():
            setattr(deployment, key, value)
        await self.stores.deployments.add(deployment)
        self.latest[name] = deployment
        last, status = reference(deployment), DeploymentStatus(deployment.status)

        def change(application: Application) -> None:
            if application.most_recently_triggered_deployment.started_at > deployment.created_at:
                return
            application.most_recently_triggered_deployment.CopyFrom(last)
            if status is DeploymentStatus.SUCCESS:
                application.most_recently_successful_deployment.CopyFrom(last)
            application.deploying = not status.is_completed
            application.updated_at = deployment.updated_at
            application.sync_state.CopyFrom(
                ApplicationSyncState(
                    status=application_pb2.ApplicationSyncStatus.ValueType(SyncStatus.SYNCED),
                    timestamp=deployment.updated_at,
                )
            )

        await self.stores.applications.update(self.applications[name].id, change)
        return deployment

    def _release(self, ago: int, name: str, **fields: object) -> Release:
        history = self.histories[name]
        values: dict[str, object] = {
            "number": history.next_number,
            "at": self.time - ago,
            "subject": history.pictured.subjects[0],
            "author": AUTHORS[ago % len(AUTHORS)],
            **fields,
        }
        history.next_number += 1
        return Release(**values)  # pyright: ignore[reportArgumentType]

    async def _today(self) -> tuple[Deployment, Deployment, Deployment]:
        """Deployments that wait, have failed and have succeeded, and some beside them."""
        await self._deploy("storefront", self._release(5 * HOUR, "storefront", author="li.wei"))
        await self._deploy("reports", self._release(4 * HOUR, "reports"))
        failed = await self._deploy(
            "search", self._release(3 * HOUR + 900, "search", fails_at="ANALYSIS")
        )
        rejected = self._release(2 * HOUR, "orders-db", fails_at="WAIT_APPROVAL")
        await self._deploy("orders-db", rejected)
        succeeded = await self._deploy(
            "checkout", self._release(95 * MINUTE, "checkout", author="Maria Souza")
        )
        await self._deploy("invoices", self._release(70 * MINUTE, "invoices", is_cancelled=True))
        await self._deploy(
            "storefront-staging",
            self._release(31 * MINUTE, "storefront-staging", commander="kenji"),
        )
        waiting = await self._deploy(
            "payments", self._release(22 * MINUTE, "payments", stops_at="WAIT_APPROVAL")
        )
        analysis = await self._deploy(
            "cart", self._release(6 * MINUTE, "cart", stops_at="ANALYSIS", author="Ann Fischer")
        )
        await self._deploy(
            "storefront", self._release(40, "storefront", stops_at="K8S_SYNC", author="kenji")
        )
        self.at(10 * MINUTE)
        await self.stores.deployments.update(waiting.id, _approved_once)
        for deployment, count in ((waiting, 3), (analysis, 2), (succeeded, 3), (failed, 2)):
            await self._logs(deployment, count)
        tokyo = self.pipeds["tokyo"]
        for deployment, targets in ((succeeded, ("tokyo", "osaka")), (waiting, ("tokyo",))):
            changes = DeploymentChanges(
                results=[kubernetes_result(target) for target in targets],
                stages_had_started=True,
                created_at=deployment.created_at,
            )
            await self.cases.deployment_reports.report_changes(deployment.id, changes, by=tokyo)
        return waiting, failed, succeeded

    async def _logs(self, deployment: Deployment, stages: int) -> None:
        """The logs of the first stages, a line every few seconds."""
        words = {
            "commit": deployment.trigger.commit.hash[:7],
            "name": deployment.application_name,
        }
        at = deployment.created_at + 11
        by = PipedCaller(self.admin.project, deployment.piped_id)
        logs = (("s1", CANARY_LOG), ("s2", ANALYSIS_LOG), ("s3", APPROVAL_LOG))
        for id, usual_lines in logs[:stages]:
            stage = next(stage for stage in deployment.stages if stage.id == id)
            has_failed = stage.status_reason and usual_lines is ANALYSIS_LOG
            lines = FAILED_ANALYSIS_LOG if has_failed else usual_lines
            blocks = [
                LogBlock(
                    index=index,
                    log=text.format(**words),
                    severity=severity,
                    created_at=at + 3 * index,
                )
                for index, (severity, text) in enumerate(lines)
            ]
            if stage.status_reason:
                failure = LogBlock(
                    index=len(lines),
                    log=stage.status_reason,
                    severity=ERROR,
                    created_at=stage.completed_at,
                )
                blocks.append(failure)
            run = StageRun(deployment.id, id)
            await self.cases.logs.append(run, blocks, by=by)
            if StageStatus(stage.status).is_completed:
                await self.cases.logs.checkpoint(run, [], completed=True, by=by)
            at = stage.completed_at

    async def _traces(self) -> None:
        """Commits of source repositories, each deployed to some applications."""
        specs = (
            (26 * HOUR, "Retry card tokens once", ("checkout-staging", "checkout")),
            (27 * HOUR, "Lazy-load the pictures below the fold", ("storefront-staging",)),
            (50 * HOUR, "Rank exact matches of the brand first", ("search",)),
            (52 * HOUR, "Emit WebP", ("thumbnailer", "storefront", "storefront-staging")),
            (3 * MINUTE, "Try the new basket icon", ()),
        )
        for ago, title, names in specs:
            at, hash = self.at(ago), commit_hash("source", title)
            request = RegisterEventRequest(
                name="image-pushed",
                data=f"registry.example/shop/{names[0] if names else 'storefront'}:{hash[:7]}",
                labels={"app": names[0] if names else "storefront"},
                commit_hash=hash,
                commit_url=f"https://git.example/shop/source/commit/{hash}",
                commit_title=title,
                commit_message=f"{title}\n\nReviewed by Maria Souza.",
                commit_author=AUTHORS[len(title) % len(AUTHORS)],
                commit_timestamp=at - 12 * MINUTE,
            )
            id = await self.cases.events.register(request, by=self._program("ci"))
            self.traced[title] = id
            for name in names:
                self.at(ago - 5 * MINUTE)
                await self.stores.deployments.update(
                    self.latest[name].id, lambda d, hash=hash: _set_trace(d, hash)
                )
            if names:
                done = EventReport(id, event_pb2.EVENT_SUCCESS, UPDATED)
                await self.cases.events.report_statuses([done], by=self.pipeds["tokyo"])

    async def _events(self) -> str:
        """Events of some days, of every status; returns the one that failed."""
        failed = ""
        specs = (
            (9 * DAY, "chart-released", "1.8.0", {"chart": "base"}, event_pb2.EVENT_SUCCESS),
            (6 * DAY, "image-pushed", "cart:v2.40.1", {"app": "cart"}, event_pb2.EVENT_OUTDATED),
            (
                6 * DAY - 300,
                "image-pushed",
                "cart:v2.40.2",
                {"app": "cart"},
                event_pb2.EVENT_SUCCESS,
            ),
            (
                2 * DAY,
                "image-pushed",
                "reports:v2.9.0",
                {"app": "reports"},
                event_pb2.EVENT_SUCCESS,
            ),
            (
                5 * HOUR,
                "image-pushed",
                "search:v1.66.0",
                {"app": "search"},
                event_pb2.EVENT_SUCCESS,
            ),
            (
                2 * HOUR,
                "image-pushed",
                "fraud-rules:v0.1.0",
                {"app": "fraud-rules", "env": "prod"},
                event_pb2.EVENT_FAILURE,
            ),
            (90, "image-pushed", "cart:v2.44.0", {"app": "cart"}, None),
        )
        for ago, name, data, labels, status in specs:
            self.at(ago)
            image = f"registry.example/shop/{data}" if ":" in data else data
            request = RegisterEventRequest(
                name=name,
                data=image,
                labels=labels,
                contexts={"Source-Run": f"https://ci.example/runs/{ago}", "Requested-By": "kenji"},
            )
            id = await self.cases.events.register(request, by=self._program("ci"))
            if status is None:
                continue
            text = UPDATED
            if status == event_pb2.EVENT_OUTDATED:
                text = "A newer event with the same name and labels was registered"
            if status == event_pb2.EVENT_FAILURE:
                text, failed = "tokyo/fraud-rules/deployment.yaml has no field image.tag", id
            self.at(ago - 20)
            report = EventReport(id, status, text)
            await self.cases.events.report_statuses([report], by=self.pipeds["tokyo"])
        return failed

    def _program(self, name: str) -> ApiKeyCaller:
        return ApiKeyCaller(self.admin.project, f"key-{name}", name, may_write=True)

    async def _live_states(self) -> None:
        """Live states with a crashing pod, and sync states of every kind."""
        for ago, is_broken in ((3 * HOUR, False), (17 * MINUTE, True)):
            self.at(ago)
            for name in ("checkout", "cart", "storefront", "payments", "search"):
                history = self.histories[name]
                state = shop_resources(
                    self.applications[name],
                    history.pictured.targets,
                    created_at=self.time - 95 * MINUTE,
                    reported_at=to_unix(self.moment[0]),
                    is_broken=is_broken and name == "checkout",
                )
                await self.cases.livestate.report(state, by=self.pipeds["tokyo"])
        reasons = {
            "checkout": (SyncStatus.OUT_OF_SYNC, "1 manifest differs", DRIFT),
            "network": (SyncStatus.OUT_OF_SYNC, "1 to add, 1 to change", ""),
            "mailer": (
                SyncStatus.INVALID_CONFIG,
                "app.pipecd.yaml is invalid",
                "tokyo/mailer/app.pipecd.yaml: spec.pipeline.stages[2].name: there is no stage "
                "K8S_CANARY_ROLOUT, did you mean K8S_CANARY_ROLLOUT?",
            ),
        }
        for name, (status, short, reason) in reasons.items():
            at, application = self.at(16 * MINUTE), self.applications[name]
            state = ApplicationSyncState(
                status=application_pb2.ApplicationSyncStatus.ValueType(status),
                short_reason=short,
                reason=reason,
                timestamp=at,
            )
            caller = PipedCaller(self.admin.project, application.piped_id)
            await self.cases.application_reports.report_sync_state(application.id, state, by=caller)
        await self.cases.applications.disable(self.applications["newsletter"].id, by=self.admin)
        found = [
            ApplicationInfo(
                name=name,
                repo_id="apps",
                path=f"tokyo/{name}",
                config_filename="app.pipecd.yaml",
                labels={"team": "web"},
            )
            for name in ("gift-cards", "wishlist")
        ]
        await self.cases.application_reports.report_unregistered(found, by=self.pipeds["tokyo"])

    async def _chains(self) -> str:
        """A chain of some days ago that has ended, and one that is in its second block."""
        controller = ChainController(self.stores, self.bus, now=self.now)
        names = ("network", "orders-db", "reports")
        for ago, ends in ((3 * DAY, len(names)), (50 * MINUTE, 1)):
            self.at(ago)
            first = self.histories[names[0]].deployment(self._release(ago, names[0]), self.time)
            piped = self.pipeds["infra"]
            matchers = [Matcher(name=name) for name in names[1:]]
            await self.cases.chains.create(first, matchers, by=piped)
            await self._keep(names[0], first)
            chain = first.deployment_chain_id
            left = ago - _seconds_taken(first)
            self.at(left)
            await controller.update(chain)
            for index, name in enumerate(names[1 : ends + 1], start=1):
                at = self.at(left)
                stops_at = "TERRAFORM_APPLY" if index == ends else ""
                release = self._release(self.time - at, name, commander=chain, stops_at=stops_at)
                deployment = self.histories[name].deployment(release, self.time)
                deployment.deployment_chain_id = chain
                deployment.deployment_chain_block_index = index
                deployment.trigger.strategy_summary = "Sync application in chain"
                await self.stores.deployments.add(deployment)
                await self._keep(name, deployment)
                await controller.update(chain)
                left -= _seconds_taken(deployment)
                self.at(left)
                await controller.update(chain)
        return chain

    async def _keep(self, name: str, deployment: Deployment) -> None:
        self.latest[name] = deployment
        last = reference(deployment)

        def change(application: Application) -> None:
            application.most_recently_triggered_deployment.CopyFrom(last)
            if deployment.completed_at:
                application.most_recently_successful_deployment.CopyFrom(last)
            application.deploying = not deployment.completed_at

        await self.stores.applications.update(self.applications[name].id, change)

    async def _previews(self) -> str:
        """Plan previews of some pull requests; returns the newest that is finished."""
        finished = ""
        branches = ((2 * DAY, "kenji/new-key"), (40 * MINUTE, "fix/retry"), (1 * MINUTE, "footer"))
        for ago, branch in branches:
            self.at(ago)
            request = RequestPlanPreviewRequest(
                repo_remote_url=REMOTE,
                head_branch=branch,
                head_commit=commit_hash(branch),
                base_branch="main",
                timeout=600,
            )
            ids = await self.cases.plan_previews.request(request, by=self._program("ci"))
            for id in ids if ago > 2 * MINUTE else ():
                command = await self.stores.commands.get(id)
                results = self._preview_results(command.piped_id)
                if not results:
                    continue
                at = self.at(ago - 30)
                output = to_json(PlanPreviewCommandResult(results=results)).encode()
                caller = PipedCaller(self.admin.project, command.piped_id)
                result = CommandResult(id, CommandStatus.SUCCEEDED, at, output=output)
                await self.cases.commands.report_handled(result, by=caller)
                if command.piped_id == self.pipeds["tokyo"].piped:
                    finished = id
        return finished

    def _preview_results(self, piped_id: str) -> Sequence[ApplicationPlanPreviewResult]:
        if piped_id == self.pipeds["tokyo"].piped:
            shown = {
                "checkout": [kubernetes_result("tokyo"), kubernetes_result("osaka")],
                "cart": results_of_all_platforms(),
                "search": [],
            }
        elif piped_id == self.pipeds["infra"].piped:
            shown = {"network": [results_of_all_platforms()[1]]}
        else:
            return ()
        return [
            ApplicationPlanPreviewResult(
                application_id=self.applications[name].id,
                application_name=name,
                labels=self.applications[name].labels,
                plugin_plan_results=results,
                error="" if results else "the chart search 1.8.0 is not in the repository",
            )
            for name, results in shown.items()
        ]

    async def _collect(self) -> None:
        self.at(0)
        chunks = ChunkWriter(self.stores.files, chunk_size=100)
        months = MonthWriter(self.stores.files)
        await collect_deployments(self.stores, "chunks", chunks, now=self.now)
        await collect_deployments(self.stores, "months", months, now=self.now)
        await collect_applications(self.stores, now=self.now)


def _seconds_taken(deployment: Deployment) -> int:
    """How long a deployment took; nothing yet if it has not ended."""
    return max(deployment.completed_at - deployment.created_at, 0)


def _approved_once(deployment: Deployment) -> None:
    for stage in deployment.stages:
        if stage.name == "WAIT_APPROVAL":
            stage.metadata["pipecd/stage-approved-users"] = "kenji"


def _set_trace(deployment: Deployment, hash: str) -> None:
    deployment.deployment_trace_commit_hash = hash
