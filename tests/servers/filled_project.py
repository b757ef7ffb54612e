# SPDX-License-Identifier: Apache-2.0
"""A project with some weeks of history: what the pages of the console show when they are full."""

from dataclasses import dataclass

from pipecd.controlplane.auth.subject import ApiKeyCaller, PipedCaller, User
from pipecd.controlplane.bus.signal import Bus
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
from pipecd.model.clock import Now, to_unix
from pipecd.model.command import CommandStatus
from pipecd.model.deployment import DeploymentStatus
from pipecd.model.document import to_json
from pipecd.model.ids import new_id
from pipecd.proto.model import event_pb2
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.model.planpreview_pb2 import (
    ApplicationPlanPreviewResult,
    PlanPreviewCommandResult,
)
from pipecd.proto.service.api_pb2 import RegisterEventRequest, RequestPlanPreviewRequest
from pipecd.proto.service.deployment_changes_pb2 import DeploymentChanges
from servers.console import PipedReports
from servers.sample_diffs import results_of_all_platforms

DAY = 86400
COMMIT = "0123456789abcdef0123456789abcdef01234567"
SUBJECTS = ("Retry card tokens once", "Raise the memory of the cart", "Sort by price")


@dataclass(frozen=True)
class FilledProject:
    """The ids of what the pages of a filled project show."""

    application: str
    chain: str
    event: str
    deployment: str
    preview: str = ""


@dataclass(frozen=True)
class ProjectFiller:
    """Fills a project through the use cases, as pipeds, programs and jobs would."""

    cases: UseCases
    stores: Stores
    bus: Bus
    admin: User
    piped: PipedCaller
    program: ApiKeyCaller
    application: Application
    now: Now

    async def fill(self) -> FilledProject:
        others = [await self._application(name) for name in ("checkout", "search", "shop")]
        applications = [self.application, *others]
        for day in range(24, 0, -1):
            for number, application in enumerate(applications):
                if (day + number) % 3:
                    await self._completed(application, day, is_failed=(day * number) % 7 == 4)
        await self._collect()
        traced = await self._trace()
        await self.cases.sessions.begin(User(self.admin.project, "vera", ("Viewer", "dev")))
        chain, event, preview = await self._chain(), await self._events(), await self._preview()
        return FilledProject(self.application.id, chain, event, traced, preview)

    async def _application(self, name: str) -> Application:
        draft = Application()
        draft.CopyFrom(self.application)
        draft.id, draft.name, draft.git_path.path = "", name, f"apps/{name}"
        draft.labels.update({"tier": "front" if name == "shop" else "back"})
        id = await self.cases.applications.add(draft, by=self.admin)
        return await self.cases.applications.get(id, by=self.admin)

    def deployment_of(self, application: Application, subject: str = SUBJECTS[0]) -> Deployment:
        deployment = Deployment(
            id=new_id(),
            application_id=application.id,
            application_name=application.name,
            piped_id=application.piped_id,
            project_id=application.project_id,
            kind=application.kind,
            git_path=application.git_path,
            labels=application.labels,
        )
        commit = deployment.trigger.commit
        commit.hash, commit.message, commit.author = new_id().replace("-", ""), subject, "ann"
        commit.branch, commit.created_at = "main", to_unix(self.now()) - 1800
        deployment.trigger.timestamp = to_unix(self.now())
        return deployment

    async def _completed(self, application: Application, days_ago: int, *, is_failed: bool) -> None:
        one = self.deployment_of(application, SUBJECTS[days_ago % len(SUBJECTS)])
        at = to_unix(self.now()) - days_ago * DAY
        status = DeploymentStatus.FAILURE if is_failed else DeploymentStatus.SUCCESS
        one.status = int(status)  # pyright: ignore[reportAttributeAccessIssue]
        one.completed_at, one.created_at, one.updated_at = at, at - 300 - 40 * days_ago, at
        one.trigger.commit.created_at = at - 3600 - 500 * days_ago
        one.running_commit_hash = "before"
        await self.stores.deployments.add(one)

    async def _collect(self) -> None:
        chunks = ChunkWriter(self.stores.files, chunk_size=100)
        months = MonthWriter(self.stores.files)
        await collect_deployments(self.stores, "chunks", chunks, now=self.now)
        await collect_deployments(self.stores, "months", months, now=self.now)
        await collect_applications(self.stores, now=self.now)

    async def _trace(self) -> str:
        request = RegisterEventRequest(
            name="image-pushed",
            data="registry.example/shop/cart:v1.4.2",
            labels={"app": "cart"},
            commit_hash=COMMIT,
            commit_url="https://git.example/shop/commit/0123456",
            commit_title=SUBJECTS[0],
            commit_message=f"{SUBJECTS[0]}\n\nThe bank asks for it.",
            commit_author="ann",
        )
        await self.cases.events.register(request, by=self.program)
        deployment = self.deployment_of(self.application)
        deployment.deployment_trace_commit_hash = COMMIT
        await self.cases.deployment_reports.create(deployment, by=self.piped)
        changes = DeploymentChanges(
            results=results_of_all_platforms(), stages_had_started=True, created_at=1
        )
        await self.cases.deployment_reports.report_changes(deployment.id, changes, by=self.piped)
        return deployment.id

    async def _preview(self) -> str:
        """A plan preview of an application that changes and one that fails, beside a running one."""
        request = RequestPlanPreviewRequest(
            repo_remote_url=self.application.git_path.repo.remote,
            head_branch="fix/retry",
            head_commit=COMMIT,
            base_branch="main",
        )
        await self.cases.plan_previews.request(request, by=self.program)
        ids = await self.cases.plan_previews.request(request, by=self.program)
        commands = [await self.stores.commands.get(id) for id in ids]
        # Other pipeds may watch the repository, too.
        (id,) = [command.id for command in commands if command.piped_id == self.piped.piped]
        results = [
            ApplicationPlanPreviewResult(
                application_id=self.application.id,
                application_name=self.application.name,
                labels=self.application.labels,
                plugin_plan_results=results_of_all_platforms(),
            ),
            ApplicationPlanPreviewResult(
                application_id="search", application_name="search", error="it has no chart"
            ),
        ]
        output = to_json(PlanPreviewCommandResult(results=results)).encode()
        at = to_unix(self.now())
        result = CommandResult(id, CommandStatus.SUCCEEDED, at, output=output)
        await self.cases.commands.report_handled(result, by=self.piped)
        return id

    async def _register(self, name: str, data: str) -> str:
        request = RegisterEventRequest(name=name, data=data, labels={"app": "cart"})
        return await self.cases.events.register(request, by=self.program)

    async def _events(self) -> str:
        """An event of every status; returns the one that failed, which has contexts."""
        done = await self._register("chart-released", "1.8.0")
        await self._register("image-pushed", "registry.example/shop/search:v2.0.1")
        request = RegisterEventRequest(
            name="image-pushed",
            data="registry.example/shop/shop:v7.2.0",
            labels={"app": "shop", "env": "dev"},
            contexts={"Source-Run": "https://ci.example/runs/1472", "Requested-By": "ann"},
        )
        failed = await self.cases.events.register(request, by=self.program)
        reports = [
            EventReport(done, event_pb2.EVENT_SUCCESS, "committed 7f3c91a to site"),
            EventReport(failed, event_pb2.EVENT_FAILURE, "deploy/shop.yaml has no field image.tag"),
        ]
        await self.cases.events.report_statuses(reports, by=self.piped)
        return failed

    async def _chain(self) -> str:
        """A chain whose first block has succeeded and whose second waits."""
        reports = PipedReports(self.cases, self.piped, self.now)
        first = self.deployment_of(self.application)
        matchers = [Matcher(labels={"tier": "back"}), Matcher(name="shop")]
        await self.cases.chains.create(first, matchers, by=self.piped)
        await reports.deployment(first, DeploymentStatus.SUCCESS)
        chains = ChainController(self.stores, self.bus, now=self.now)
        await chains.resync()
        return first.deployment_chain_id
