# SPDX-License-Identifier: Apache-2.0
"""A control plane on a temporary SQLite file: stores, bus, use cases, and a small project in it."""

from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pipecd.controlplane.auth.subject import ApiKeyCaller, PipedCaller, User
from pipecd.controlplane.bus.memory import MemoryBus
from pipecd.controlplane.cache.memory import MemoryCache
from pipecd.controlplane.datastore.engines.sqlite import open_sqlite
from pipecd.controlplane.datastore.stores import Stores, create_stores
from pipecd.controlplane.filestore.local import LocalFiles
from pipecd.controlplane.usecases import UseCases, build_use_cases
from pipecd.controlplane.usecases.pipeds import RegisteredPiped
from pipecd.controlplane.usecases.projects import ConfigProject, StaticAdmin
from pipecd.model.clock import Now
from pipecd.model.ids import new_id
from pipecd.proto.model import common_pb2 as common
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import Commit, Deployment, DeploymentTrigger, PipelineStage
from pipecd.proto.model.project_pb2 import ProjectSSOConfig
from pipecd.proto.service.piped_pb2 import (
    ReportDeploymentPlannedRequest,
    ReportPipedMetaRequest,
)

PROJECT = "shop"
ADDRESS = "https://pipecd.example"
ENCRYPTION_KEY = b"0123456789abcdef0123456789abcdef\n"
BEGINNING = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
# The bcrypt hash of "config-password", with a low cost that keeps the tests quick.
CONFIG_HASH = "$2b$04$nqMzGa6XMNKjS3mVWwJ3qO1LDobWdS1B3.KtkMqciCcV1KH3LLHH."


@pytest.fixture
def moment() -> list[datetime]:
    """The time of the control plane; a list, so that `advance` can change it."""
    return [BEGINNING]


@pytest.fixture
def now(moment: list[datetime]) -> Now:
    return lambda: moment[0]


@pytest.fixture
def advance(moment: list[datetime]) -> Callable[[float], None]:
    """Advances the clock by so many seconds."""

    def advance_clock(seconds: float) -> None:
        moment[0] += timedelta(seconds=seconds)

    return advance_clock


@pytest.fixture
async def stores(tmp_path: Path, now: Now) -> AsyncIterator[Stores]:
    files = await LocalFiles.open(tmp_path / "files")
    async with open_sqlite(tmp_path / "pipecd.db") as database:
        yield create_stores(database, files, MemoryCache(), now=now)


@pytest.fixture
def bus() -> MemoryBus:
    return MemoryBus()


@pytest.fixture
def cases(stores: Stores, bus: MemoryBus, now: Now) -> UseCases:
    return build_use_cases(
        stores,
        bus,
        address=ADDRESS,
        encryption_key=ENCRYPTION_KEY,
        projects_from_config=[ConfigProject("declared", "root", CONFIG_HASH, "from the file")],
        now=now,
    )


@pytest.fixture
async def static_admin(cases: UseCases) -> StaticAdmin:
    """The administrator of the project of these tests."""
    return await cases.projects.add(PROJECT, "the shop")


@pytest.fixture
def admin(static_admin: StaticAdmin) -> User:
    return User(PROJECT, static_admin.username, ("Admin",))


@pytest.fixture
async def single_sign_on(cases: UseCases, admin: User) -> None:
    """Single sign-on of the project, without which its static admin cannot be disabled."""
    oidc = ProjectSSOConfig.Oidc(client_id="id", client_secret="s", issuer="https://idp.example")
    sso = ProjectSSOConfig(provider=ProjectSSOConfig.OIDC, oidc=oidc)
    await cases.projects.set_sso(sso, by=admin)


@pytest.fixture
def viewer(static_admin: StaticAdmin) -> User:
    del static_admin
    return User(PROJECT, "vera", ("Viewer",))


@pytest.fixture
def stranger(static_admin: StaticAdmin) -> User:
    """The administrator of another project."""
    del static_admin
    return User("declared", "root", ("Admin",))


@pytest.fixture
def program(static_admin: StaticAdmin) -> ApiKeyCaller:
    del static_admin
    return ApiKeyCaller(PROJECT, "key-1", "ci", may_write=True)


@pytest.fixture
def meta() -> ReportPipedMetaRequest:
    """The report that the piped sends when it starts."""
    repository = common.ApplicationGitRepository(
        id="site", remote="git@github.com:shop/site.git", branch="main"
    )
    return ReportPipedMetaRequest(version="v0.50.0", repositories=[repository], config="{}")


@pytest.fixture
async def registered(cases: UseCases, admin: User, meta: ReportPipedMetaRequest) -> RegisteredPiped:
    """A piped of the project that has reported once."""
    registered = await cases.pipeds.register("dev", "the dev cluster", by=admin)
    await cases.pipeds.report_meta(meta, by=PipedCaller(PROJECT, registered.id))
    return registered


@pytest.fixture
def piped(registered: RegisteredPiped) -> PipedCaller:
    return PipedCaller(PROJECT, registered.id)


@pytest.fixture
async def other_piped(cases: UseCases, admin: User) -> PipedCaller:
    """Another piped of the same project."""
    registered = await cases.pipeds.register("prod", "the prod cluster", by=admin)
    return PipedCaller(PROJECT, registered.id)


@pytest.fixture
def draft(registered: RegisteredPiped) -> Application:
    """An application that is not registered yet."""
    return Application(
        name="cart",
        piped_id=registered.id,
        kind=common.KUBERNETES,
        platform_provider="kubernetes-default",
        git_path=common.ApplicationGitPath(
            repo=common.ApplicationGitRepository(id="site"), path="apps/cart"
        ),
        labels={"env": "dev"},
    )


@pytest.fixture
async def application(cases: UseCases, draft: Application, admin: User) -> Application:
    """A registered application of the piped."""
    id = await cases.applications.add(draft, by=admin)
    return await cases.applications.get(id, by=admin)


@pytest.fixture
def new_deployment(application: Application) -> Callable[[], Deployment]:
    """Builds deployments of the application, as a piped sends them."""

    def build() -> Deployment:
        commit = Commit(
            hash="c0ffee", message="more coffee", author="ann", branch="main", created_at=1
        )
        return Deployment(
            id=new_id(),
            application_id=application.id,
            application_name=application.name,
            piped_id=application.piped_id,
            project_id=application.project_id,
            kind=application.kind,
            platform_provider=application.platform_provider,
            deploy_targets_by_plugin=application.deploy_targets_by_plugin,
            git_path=application.git_path,
            labels=application.labels,
            trigger=DeploymentTrigger(commit=commit, timestamp=1),
        )

    return build


@pytest.fixture
def stages() -> list[PipelineStage]:
    """The stages of a planned deployment."""
    return [
        PipelineStage(id="s1", name="K8S_CANARY_ROLLOUT", created_at=1, updated_at=1),
        PipelineStage(id="s2", name="WAIT_APPROVAL", created_at=1, updated_at=1, index=1),
        PipelineStage(id="s3", name="ANALYSIS", created_at=1, updated_at=1, index=2),
    ]


@pytest.fixture
async def deployment(
    cases: UseCases,
    new_deployment: Callable[[], Deployment],
    stages: list[PipelineStage],
    piped: PipedCaller,
) -> Deployment:
    """A planned deployment of the application."""
    deployment = new_deployment()
    await cases.deployment_reports.create(deployment, by=piped)
    await cases.deployment_reports.report_planned(
        ReportDeploymentPlannedRequest(
            deployment_id=deployment.id, summary="canary", stages=stages
        ),
        by=piped,
    )
    return await cases.deployments.get(deployment.id, by=piped)
