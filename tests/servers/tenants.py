# SPDX-License-Identifier: Apache-2.0
"""Projects of a control plane, each with pipeds, an application, a deployment and keys of its own."""

from dataclasses import dataclass
from pathlib import Path

from pipecd.controlplane.auth.subject import PipedCaller, User
from pipecd.controlplane.usecases import UseCases
from pipecd.proto.model import common_pb2 as common
from pipecd.proto.model.apikey_pb2 import APIKey
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import Commit, Deployment, DeploymentTrigger, PipelineStage
from pipecd.proto.service.api_pb2 import RegisterEventRequest
from pipecd.proto.service.piped_pb2 import ReportDeploymentPlannedRequest, ReportPipedMetaRequest

REPOSITORY = common.ApplicationGitRepository(id="site", remote="git@h:o/r.git", branch="main")
PUBLIC_KEY = Path(__file__).parents[1] / "spec" / "vectors" / "secret_public.pem"


@dataclass(frozen=True)
class PipedObjects:
    """A registered piped and the ids of its objects."""

    caller: PipedCaller
    key: str
    application: str
    deployment: str
    command: str
    event: str

    @property
    def ids(self) -> dict[str, str]:
        """The ids by the names of the request fields that hold them."""
        return {
            "project_id": self.caller.project,
            "piped_id": self.caller.piped,
            "application_id": self.application,
            "deployment_id": self.deployment,
            "command_id": self.command,
            "event_id": self.event,
            "stage_id": "s1",
            "repo_id": REPOSITORY.id,
        }


@dataclass(frozen=True)
class Tenant:
    """A project with two pipeds and API keys, one for each of their roles."""

    project: str
    piped: PipedObjects
    sibling: PipedObjects
    api_key: str
    read_only_key: str
    approving_key: str
    session_key: str

    def user(self, *roles: str) -> User:
        return User(self.project, roles[0].lower() if roles else "nobody", roles)


async def add_tenant(cases: UseCases, project: str) -> Tenant:
    """Fills a project that exists already; names and logs of its objects contain its name."""
    admin = User(project, "admin", ("Admin",))
    return Tenant(
        project,
        await add_objects(cases, admin, f"{project}-one"),
        await add_objects(cases, admin, f"{project}-two"),
        await cases.api_keys.generate(f"{project}-write", APIKey.READ_WRITE, by=admin),
        await cases.api_keys.generate(f"{project}-read", APIKey.READ_ONLY, by=admin),
        await cases.api_keys.generate(
            f"{project}-approve", APIKey.READ_WRITE, may_approve=True, by=admin
        ),
        await cases.api_keys.generate(
            f"{project}-sessions", APIKey.READ_ONLY, may_manage_sessions=True, by=admin
        ),
    )


async def add_objects(cases: UseCases, admin: User, name: str) -> PipedObjects:
    """Registers a piped with an application, a planned deployment, a command and an event."""
    registered = await cases.pipeds.register(name, f"{name}-description", by=admin)
    piped = PipedCaller(admin.project, registered.id)
    meta = ReportPipedMetaRequest(version="v1", repositories=[REPOSITORY], config="{}")
    meta.secret_encryption.type = "KEY_PAIR"
    meta.secret_encryption.public_key = PUBLIC_KEY.read_text()
    await cases.pipeds.report_meta(meta, by=piped)
    id_ = await cases.applications.add(application_draft(name, registered.id), by=admin)
    application = await cases.applications.get(id_, by=admin)
    deployment = new_deployment(application, f"deployment-of-{name}")
    await cases.deployment_reports.create(deployment, by=piped)
    stages = [PipelineStage(id="s1", name="WAIT_APPROVAL", created_at=1, updated_at=1)]
    plan = ReportDeploymentPlannedRequest(
        deployment_id=deployment.id, summary=f"{name}-summary", stages=stages
    )
    await cases.deployment_reports.report_planned(plan, by=piped)
    event = RegisterEventRequest(name=f"{name}-event", data=f"{name}-data")
    return PipedObjects(
        piped,
        registered.key,
        id_,
        deployment.id,
        await cases.pipeds.restart(registered.id, by=admin),
        await cases.events.register(event, by=admin),
    )


def application_draft(name: str, piped: str) -> Application:
    return Application(
        name=name,
        piped_id=piped,
        kind=common.KUBERNETES,
        platform_provider="k",
        git_path=common.ApplicationGitPath(repo=REPOSITORY, path=name),
        labels={"env": "dev"},
    )


def new_deployment(application: Application, id_: str) -> Deployment:
    """A deployment of an application, as its piped creates it."""
    commit = Commit(hash="c0ffee", message="m", author="a", branch="main", created_at=1)
    return Deployment(
        id=id_,
        application_id=application.id,
        application_name=application.name,
        piped_id=application.piped_id,
        project_id=application.project_id,
        kind=application.kind,
        git_path=application.git_path,
        labels=application.labels,
        trigger=DeploymentTrigger(commit=commit, timestamp=1),
    )
