# SPDX-License-Identifier: Apache-2.0
"""A project with every kind of object that the control plane stores, for moves to another server."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pipecd.controlplane.app import ControlPlane
from pipecd.controlplane.auth.subject import ApiKeyCaller, PipedCaller, User
from pipecd.controlplane.datastore.stage_logs import StageRun
from pipecd.controlplane.usecases.commands import CommandResult
from pipecd.controlplane.usecases.projects import StaticAdmin
from pipecd.controlplane.usecases.shared_objects import SharedObjectKey
from pipecd.model.clock import to_unix, utc_now
from pipecd.model.command import CommandStatus
from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.proto.model import application_pb2
from pipecd.proto.model import common_pb2 as common
from pipecd.proto.model.analysis_pb2 import AnalysisResult
from pipecd.proto.model.apikey_pb2 import APIKey
from pipecd.proto.model.application_pb2 import (
    Application,
    ApplicationDeploymentReference,
    ApplicationSyncState,
)
from pipecd.proto.model.deployment_pb2 import (
    Deployment,
    DeployTargets,
    ManualOperation,
    PipelineStage,
)
from pipecd.proto.model.livestate_pb2 import ApplicationLiveStateSnapshot
from pipecd.proto.model.project_pb2 import (
    ProjectRBACConfig,
    ProjectRBACPolicy,
    ProjectRBACResource,
    ProjectSSOConfig,
)
from pipecd.proto.service.api_pb2 import RequestPlanPreviewRequest
from pipecd.proto.service.lease_pb2 import AcquirePipedLeaseRequest
from pipecd.proto.service.piped_pb2 import ReportDeploymentPlannedRequest, ReportPipedMetaRequest
from servers.console import PipedReports
from servers.filled_project import ProjectFiller
from servers.tenants import PUBLIC_KEY

PROJECT, PASSWORD = "shop", "hello-shop"
# The plugin and the key of an object that it shares.
SHARED_KEY = ("kubernetes", "baseline")
PIPELINE = ("WAIT_APPROVAL", "ANALYSIS", "K8S_SYNC", "SCRIPT_RUN", "WAIT", "ROLLBACK")
# What becomes of the stages of a deployment that ended in each status.
STAGES: dict[DeploymentStatus, tuple[StageStatus, ...]] = {
    DeploymentStatus.PENDING: (),
    DeploymentStatus.PLANNED: (),
    DeploymentStatus.RUNNING: (StageStatus.RUNNING,),
    DeploymentStatus.ROLLING_BACK: (StageStatus.SUCCESS, StageStatus.FAILURE),
    DeploymentStatus.SUCCESS: (StageStatus.SUCCESS, StageStatus.SKIPPED, StageStatus.EXITED),
    DeploymentStatus.FAILURE: (StageStatus.FAILURE,),
    DeploymentStatus.CANCELLED: (StageStatus.SUCCESS, StageStatus.CANCELLED),
}


@dataclass
class WrittenObjects:
    """The ids of what was written, and keys that the other server must accept."""

    # A piped for the other server to run, and one that has reported everything.
    piped: str = ""
    piped_key: str = ""
    busy: str = ""
    busy_key: str = ""
    api_key: str = ""
    applications: list[str] = field(default_factory=list[str])
    deployments: list[str] = field(default_factory=list[str])
    commands: list[str] = field(default_factory=list[str])
    # Deployments and their chains.
    chains: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    live: list[str] = field(default_factory=list[str])
    # Deployments and stages.
    logs: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])


class ObjectWriter:
    """Writes through the use cases of a control plane, as people, pipeds, programs and jobs do."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane, self._cases = plane, plane.cases
        self._admin = User(PROJECT, "root", ("Admin",))
        self._written = WrittenObjects()

    async def write(
        self, sso: ProjectSSOConfig, repositories: Sequence[common.ApplicationGitRepository]
    ) -> WrittenObjects:
        await self._cases.projects.add(PROJECT, "sells things", StaticAdmin("first", "replaced"))
        await self._settings(sso)
        await self._api_keys()
        piped = await self._pipeds(repositories)
        applications = [await self._application(piped, n) for n in range(len(DRAFTS))]
        await self._application_states(piped, applications)
        for status in DeploymentStatus:
            last = await self._deployment(piped, applications[0], status)
            await self._most_recent(piped, last)
        await self._decisions(piped, applications[-1])
        await self._other_commands(piped, applications[0])
        await self._history(piped, applications[0])
        return self._written

    async def _settings(self, sso: ProjectSSOConfig) -> None:
        by, cases = self._admin, self._cases
        github = ProjectSSOConfig.GitHub(client_id="id", client_secret="of GitHub")
        await cases.projects.set_sso(
            ProjectSSOConfig(provider=ProjectSSOConfig.GITHUB, github=github), by=by
        )
        await cases.projects.set_sso(sso, by=by)
        await cases.projects.set_static_admin("root", PASSWORD, by=by)
        teams = ProjectRBACConfig(admin="shop/admins", editor="shop/devs", viewer="shop/all")
        await cases.projects.set_legacy_teams(teams, by=by)
        applications = ProjectRBACResource(
            type=ProjectRBACResource.APPLICATION, labels={"env": "dev"}
        )
        policy = ProjectRBACPolicy(
            resources=[applications], actions=[ProjectRBACPolicy.GET, ProjectRBACPolicy.UPDATE]
        )
        await cases.roles.add("operator", [policy], by=by)
        await cases.roles.add_group("authors", "operator", by=by)
        await cases.roles.add_group("owners", "Admin", by=by)

    async def _api_keys(self) -> None:
        generate = self._cases.api_keys.generate
        self._written.api_key = await generate("write", APIKey.READ_WRITE, by=self._admin)
        await generate("read", APIKey.READ_ONLY, by=self._admin)
        await generate("approves", APIKey.READ_WRITE, may_approve=True, by=self._admin)
        await generate("old", APIKey.READ_ONLY, by=self._admin)
        [old] = [k for k in await self._cases.api_keys.list(by=self._admin) if k.name == "old"]
        await self._cases.api_keys.disable(old.id, by=self._admin)

    async def _pipeds(self, repositories: Sequence[common.ApplicationGitRepository]) -> PipedCaller:
        """Two pipeds: one that has reported much, and one for the other server to run."""
        pipeds, by = self._cases.pipeds, self._admin
        next_one = await pipeds.register("next", "deploys after the move", by=by)
        await pipeds.report_meta(
            ReportPipedMetaRequest(version="v1", repositories=repositories, config="{}"),
            by=PipedCaller(PROJECT, next_one.id),
        )
        self._written.piped, self._written.piped_key = next_one.id, next_one.key
        registered = await pipeds.register("old name", "", by=by)
        caller = PipedCaller(PROJECT, registered.id)
        self._written.busy, self._written.busy_key = registered.id, registered.key
        meta = ReportPipedMetaRequest(
            version="v1", repositories=repositories, config="apiVersion: x\n"
        )
        meta.platform_providers.add(name="k8s", type="KUBERNETES")
        meta.plugins.add(name="kubernetes", deploy_targets=["here"])
        meta.secret_encryption.type = "KEY_PAIR"
        meta.secret_encryption.public_key = PUBLIC_KEY.read_text()
        await pipeds.report_meta(meta, by=caller)
        await pipeds.update(registered.id, "busy", "reports everything", by=by)
        await pipeds.add_key(registered.id, by=by)
        await pipeds.set_desired_version("v0.55.0", [registered.id], by=by)
        request = AcquirePipedLeaseRequest(host="worker")
        leases = self._cases.piped_leases
        request.ticket = (await leases.acquire(request, by=caller))[0].ticket
        await leases.acquire(request, by=caller)
        unused = await pipeds.register("unused", "disabled", by=by)
        await pipeds.disable(unused.id, by=by)
        return caller

    async def _application(self, piped: PipedCaller, number: int) -> Application:
        draft = Application()
        draft.CopyFrom(DRAFTS[number])
        draft.piped_id, draft.labels["env"] = piped.piped, "dev"
        repository = (await self._plane.stores.pipeds.get(piped.piped)).repositories[0]
        place = common.ApplicationGitPath(repo=repository, path=f"apps/{draft.name}")
        place.config_filename = "app.pipecd.yaml"
        draft.git_path.CopyFrom(place)
        id = await self._cases.applications.add(draft, by=self._admin)
        self._written.applications.append(id)
        return await self._cases.applications.get(id, by=self._admin)

    async def _application_states(
        self, piped: PipedCaller, applications: Sequence[Application]
    ) -> None:
        cases, now = self._cases, to_unix(utc_now())
        drifted = ApplicationSyncState(
            status=application_pb2.OUT_OF_SYNC,
            short_reason="1 change",
            reason="- a\n+ b",
            head_deployment_id="",
            timestamp=now,
        )
        reports = cases.application_reports
        await reports.report_sync_state(applications[0].id, drifted, by=piped)
        await reports.report_deploying(applications[1].id, True, by=piped)
        stray = common.ApplicationInfo(
            name="stray", repo_id="site", path="stray", config_filename="app.pipecd.yaml",
            piped_id=piped.piped, labels={"env": "dev"},
        )  # fmt: skip
        await reports.report_unregistered([stray], by=piped)
        for application in applications:
            snapshot = ApplicationLiveStateSnapshot(
                application_id=application.id, kind=application.kind
            )
            snapshot.version.timestamp = now
            resource = snapshot.application_live_state.resources.add()
            resource.id, resource.name, resource.created_at = "1", application.name, now
            resource.updated_at, resource.resource_type = now, "Deployment"
            await cases.livestate.report(snapshot, by=piped)
            self._written.live.append(application.id)
        id = applications[0].id
        await cases.objects.put_analysis_result(id, AnalysisResult(start_time=now), by=piped)
        key = SharedObjectKey(id, *SHARED_KEY)
        await cases.objects.put(key, b'{"a": 1}', by=piped)
        await cases.applications.disable(applications[2].id, by=self._admin)
        await cases.applications.delete(applications[3].id, by=self._admin)

    async def _planned(self, piped: PipedCaller, application: Application) -> Deployment:
        filler = self._filler(piped, application)
        deployment = filler.deployment_of(application)
        deployment.platform_provider = application.platform_provider
        for plugin, targets in application.deploy_targets_by_plugin.items():
            deployment.deploy_targets_by_plugin[plugin].CopyFrom(targets)
        await self._cases.deployment_reports.create(deployment, by=piped)
        self._written.deployments.append(deployment.id)
        return deployment

    async def _plan(self, piped: PipedCaller, deployment: Deployment) -> None:
        now = to_unix(utc_now())
        stages = [
            PipelineStage(
                id=f"s{n}", name=name, index=n, created_at=now, updated_at=now, visible=True,
                rollback=name == "ROLLBACK", requires=[f"s{n - 1}"] if n else [],
            )
            for n, name in enumerate(PIPELINE)
        ]  # fmt: skip
        stages[0].available_operation = ManualOperation.MANUAL_OPERATION_APPROVE
        stages[0].authorized_operators.append("root")
        plan = ReportDeploymentPlannedRequest(
            deployment_id=deployment.id, summary="Sync with the pipeline", stages=stages,
            running_commit_hash="before", running_config_filename="app.pipecd.yaml",
        )  # fmt: skip
        image = common.ArtifactVersion.CONTAINER_IMAGE
        plan.versions.add(kind=image, version="v2", name="web", url="registry.example/web:v2")
        await self._cases.deployment_reports.report_planned(plan, by=piped)

    async def _deployment(
        self, piped: PipedCaller, application: Application, status: DeploymentStatus
    ) -> Deployment:
        """A deployment that has got as far as the status, with logs and metadata."""
        reports, saves = PipedReports(self._cases, piped, utc_now), self._cases.deployment_reports
        deployment = await self._planned(piped, application)
        if status is DeploymentStatus.PENDING:
            return deployment
        await self._plan(piped, deployment)
        if status is DeploymentStatus.PLANNED:
            return deployment
        await reports.deployment(deployment, DeploymentStatus.RUNNING)
        for n, outcome in enumerate(STAGES[status]):
            stage = f"s{n}"
            await reports.stage(deployment, stage, StageStatus.RUNNING)
            self._written.logs.append((deployment.id, stage))
            await reports.lines(deployment, stage, "one", "\x1b[31mtwo\x1b[0m", "drei → ✓")
            run = StageRun(deployment.id, stage)
            is_completed = outcome.is_completed
            await self._cases.logs.checkpoint(run, [], completed=is_completed, by=piped)
            if is_completed:
                await reports.stage(deployment, stage, outcome, "because")
            await saves.save_stage_metadata(deployment.id, stage, {"Report": "fine"}, by=piped)
        await saves.save_metadata(deployment.id, {"Notified": "ann"}, by=piped)
        await saves.save_plugin_metadata(deployment.id, "kubernetes", {"a": "b"}, by=piped)
        if status is not DeploymentStatus.RUNNING:
            await reports.deployment(deployment, status)
        return deployment

    async def _most_recent(self, piped: PipedCaller, deployment: Deployment) -> None:
        """What an application shows of its last deployments."""
        reference = ApplicationDeploymentReference(
            deployment_id=deployment.id, trigger=deployment.trigger, summary="Sync", version="v2",
            config_filename="app.pipecd.yaml", started_at=to_unix(utc_now()),
        )  # fmt: skip
        report = self._cases.application_reports.report_most_recent_deployment
        for status in (DeploymentStatus.PENDING, DeploymentStatus.SUCCESS):
            await report(deployment.application_id, status, reference, by=piped)

    async def _decisions(self, piped: PipedCaller, application: Application) -> None:
        """Approvals, rejections, skips and cancellations, handled and not."""
        deployments, commands = self._cases.deployments, self._cases.commands
        one = await self._deployment(piped, application, DeploymentStatus.RUNNING)
        ids = [
            await deployments.approve(one.id, "s0", by=self._admin),
            await deployments.reject(one.id, "s0", "too risky", by=self._admin),
            await deployments.skip(one.id, "s1", by=self._admin),
            await deployments.cancel(one.id, True, False, by=self._admin),
        ]
        results = (CommandStatus.SUCCEEDED, CommandStatus.FAILED, CommandStatus.TIMEOUT)
        for id, status in zip(ids, results, strict=False):
            result = CommandResult(id, status, to_unix(utc_now()), {"Reason": "because"})
            await commands.report_handled(result, by=piped)
        self._written.commands += ids

    async def _other_commands(self, piped: PipedCaller, application: Application) -> None:
        request = RequestPlanPreviewRequest(
            repo_remote_url=application.git_path.repo.remote,
            head_branch="topic", head_commit="c0ffee", base_branch="main", timeout=60,
        )  # fmt: skip
        self._written.commands += [
            await self._cases.applications.sync(application.id, by=self._admin),
            await self._cases.pipeds.restart(piped.piped, by=self._admin),
            *await self._cases.plan_previews.request(request, by=self._admin),
        ]

    async def _history(self, piped: PipedCaller, application: Application) -> None:
        """Weeks of completed deployments, insights, events, a trace and a chain."""
        filled = await self._filler(piped, application).fill()
        self._written.deployments.append(filled.deployment)
        chain = await self._plane.stores.chains.get(filled.chain)
        first = chain.blocks[0].nodes[0].deployment_ref.deployment_id
        self._written.chains.append((first, filled.chain))

    def _filler(self, piped: PipedCaller, application: Application) -> ProjectFiller:
        plane, program = self._plane, ApiKeyCaller(PROJECT, "k1", "write", may_write=True)
        return ProjectFiller(
            plane.cases, plane.stores, plane.bus, self._admin, piped, program, application, utc_now
        )


_KINDS = {
    "kubernetes": common.KUBERNETES,
    "terraform": common.TERRAFORM,
    "lambda": common.LAMBDA,
    "cloudrun": common.CLOUDRUN,
    "ecs": common.ECS,
}
# Applications of the first generation of every kind, and one of the second.
DRAFTS = (
    *(Application(name=n, kind=kind, platform_provider="k8s") for n, kind in _KINDS.items()),
    Application(
        name="plugins",
        deploy_targets_by_plugin={"kubernetes": DeployTargets(deploy_targets=["here"])},
    ),
)
