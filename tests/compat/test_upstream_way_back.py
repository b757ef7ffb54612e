# SPDX-License-Identifier: Apache-2.0
"""Upstream's control plane goes on with a database that ours has filled, and ours with theirs."""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any

import httpx2
import pytest

from pipecd.config.controlplane import InsightCollectorSpec
from pipecd.controlplane.app import ControlPlane
from pipecd.controlplane.jobs import background_jobs
from pipecd.controlplane.jobs.runner import PeriodicJob
from pipecd.model.deployment import DeploymentStatus
from pipecd.proto.model import common_pb2 as common
from pipecd.proto.model.apikey_pb2 import APIKey
from pipecd.proto.model.project_pb2 import (
    ProjectRBACPolicy,
    ProjectRBACResource,
    ProjectSSOConfig,
)
from pipecd.proto.service import web_pb2
from servers.dex import CLIENT, SECRET, Dex
from servers.every_object import PASSWORD, PROJECT, ObjectWriter, WrittenObjects
from servers.fixtures import running
from servers.piped import piped_config
from servers.programs import OUR_PIPECD
from servers.stored_answers import API, PIPED, WEB, AnswerReader, Answers, differences, requests
from servers.upstream import UpstreamInstallation, Visitor

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# What is not in the stores: releases on GitHub, results of plan previews, which are in the cache,
# and applications that are not registered, which pipeds report again every minute.
NOT_STORED = {
    "ListReleasedVersions",
    "ListDeprecatedNotes",
    "GetPlanPreviewResults",
    "ListUnregisteredApplications",
}
# Upstream has these RPCs without a permission and so denies them to everybody; chains are compared
# by what a piped is told about them.
DENIED = {"ListDeploymentChains", "GetDeploymentChain"}

APP = """\
apiVersion: pipecd.dev/v1beta1
kind: TerraformApp
spec:
  name: ground
  input: {terraformVersion: given}
  pipeline:
    stages:
      - {name: TERRAFORM_PLAN}
      - {name: WAIT, with: {duration: 1s}}
      - {name: TERRAFORM_APPLY}
"""


def test_every_rpc_that_reads_is_compared() -> None:
    ids = WrittenObjects(
        applications=["a"], deployments=["d"], commands=["c"], chains=[("d", "c")], live=["a"],
        logs=[("d", "s")],
    )  # fmt: skip
    compared = {(service.name, rpc) for service, rpc, _ in requests(ids)}
    expected = {
        (service.name, method.name)
        for service in (WEB, API, PIPED)
        for method in service.methods
        if method.name.startswith(("Get", "List", "InChain"))
        and method.name not in NOT_STORED | DENIED
    }
    assert compared == expected


@pytest.fixture
def dex(upstream_installation: UpstreamInstallation) -> Iterator[Dex]:
    callback = f"{upstream_installation.admin.pages}/auth/callback"
    yield from running(lambda: Dex(callback))


def sso_of(dex: Dex) -> ProjectSSOConfig:
    oidc = ProjectSSOConfig.Oidc(
        client_id=CLIENT,
        client_secret=SECRET,
        issuer=dex.issuer,
        redirect_uri=dex.callback,
        scopes=["openid", "profile", "email", "groups"],
        username_claim_key="name",
    )
    return ProjectSSOConfig(provider=ProjectSSOConfig.OIDC, session_ttl=2, oidc=oidc)


async def signed_in_with(dex: Dex, pages: str) -> str:
    """The session of the member of the group authors, after a sign-in at the provider."""
    async with httpx2.AsyncClient(base_url=pages, follow_redirects=True, timeout=20) as browser:
        page = await browser.post("/auth/login", data={"project": PROJECT})
        chosen = re.search(r'href="([^"]+/auth/mock[^"]+)"', page.text)
        assert chosen, page.text
        page = await browser.get(page.url.join(unescape(chosen[1])))
        if agreed := re.search(r'name="req" value="([^"]+)"', page.text):
            await browser.post(page.url, data={"req": agreed[1], "approval": "approve"})
        return browser.cookies.get("token") or ""


@asynccontextmanager
async def our_server(
    installation: UpstreamInstallation,
) -> AsyncGenerator[tuple[ControlPlane, AnswerReader], None]:
    """A control plane of ours on the stores of upstream's, which must not run meanwhile.

    Its background jobs would count applications again.
    """
    async with installation.our_control_plane(with_ops=False) as plane:
        address = f"127.0.0.1:{plane.port}"
        yield plane, AnswerReader(Visitor(f"http://{address}", address), address, address)


def repository(installation: UpstreamInstallation) -> common.ApplicationGitRepository:
    remote = installation.origin.remote
    return common.ApplicationGitRepository(id="site", remote=remote, branch="main")


@dataclass(frozen=True)
class Ground:
    """An application of upstream's first-generation piped, registered in our control plane."""

    installation: UpstreamInstallation
    directory: Path
    state: Path

    def config(self, ids: WrittenObjects) -> Path:
        text = piped_config(
            ids.piped,
            ids.piped_key,
            address=self.installation.address,
            remote=self.installation.origin.remote,
            project=PROJECT,
            rest="  syncInterval: 5s\n  platformProviders: [{name: tf, type: TERRAFORM}]\n",
        )
        file = self.directory / "piped.yaml"
        file.write_text(text)
        return file

    def commit(self, value: str) -> str:
        backend = f'  backend "local" {{ path = "{self.state}" }}'
        resource = f'resource "terraform_data" "ground" {{ input = "{value}" }}'
        text = f"terraform {{\n{backend}\n}}\n{resource}\n"
        files = {"ground/app.pipecd.yaml": APP, "ground/main.tf": text}
        return self.installation.origin.commit(files)

    async def add(self, admin: Visitor, ids: WrittenObjects) -> None:
        place = common.ApplicationGitPath(
            repo=repository(self.installation), path="ground", config_filename="app.pipecd.yaml"
        )
        request = web_pb2.AddApplicationRequest(
            name="ground", piped_id=ids.piped, git_path=place, kind=common.TERRAFORM,
            platform_provider="tf",
        )  # fmt: skip
        added = await admin.call("AddApplication", request)
        ids.applications.append(added.application_id)

    async def deployed(self, admin: Visitor, commit: str) -> Any:
        """The deployment of a commit once it is completed."""
        options = web_pb2.ListDeploymentsRequest.Options()
        request = web_pb2.ListDeploymentsRequest(options=options, page_size=200)
        for one in (await admin.call("ListDeployments", request)).deployments:
            if one.trigger.commit.hash == commit and DeploymentStatus(one.status).is_completed:
                return one
        return None


async def collect_insights(plane: ControlPlane) -> tuple[str, ...]:
    """Runs our jobs that write the insight files; returns the files."""
    for job in background_jobs(plane.stores, plane.bus, InsightCollectorSpec()):
        if isinstance(job, PeriodicJob) and job.name.startswith("insight-"):
            await job.work()
    return await plane.stores.files.list("insights/")


def deployment_counts(answers: Answers) -> list[float]:
    """The highest deployment frequency of each selection and resolution."""
    charts: list[Any] = [
        answer
        for what, answer in answers.items()
        if ".GetInsightData " in what and "CHANGE_FAILURE_RATE" not in what
    ]
    return [max(point.value for point in chart.matrix[0].data_points) for chart in charts]


async def unseal(installation: UpstreamInstallation) -> None:
    """The step of the guide before upstream's server is started."""
    config = installation.plane.config
    files = (f"--config-file={config}", f"--encryption-key-file={config.parent / 'key'}")
    unsealed = await installation.run(OUR_PIPECD, "unseal-secrets", *files)
    assert unsealed.out == "unsealed the client secrets of 1 project\n", unsealed.err


async def write_to_upstream(admin: Visitor, ids: WrittenObjects) -> None:
    """Changes of every kind that upstream's console can make."""
    new = await admin.call("RegisterPiped", web_pb2.RegisterPipedRequest(name="of upstream"))
    await admin.call("DisablePiped", web_pb2.DisablePipedRequest(piped_id=new.id))
    key = web_pb2.GenerateAPIKeyRequest(name="of upstream", role=APIKey.READ_ONLY)
    await admin.call("GenerateAPIKey", key)
    pipeds = ProjectRBACResource(type=ProjectRBACResource.PIPED)
    policy = ProjectRBACPolicy(resources=[pipeds], actions=[ProjectRBACPolicy.ALL])
    role = web_pb2.AddProjectRBACRoleRequest(name="fleet", policies=[policy])
    await admin.call("AddProjectRBACRole", role)
    group = web_pb2.AddProjectUserGroupRequest(sso_group="fleet", role="fleet")
    await admin.call("AddProjectUserGroup", group)
    for id in ids.applications[:2]:
        sync = web_pb2.SyncApplicationRequest(application_id=id)
        ids.commands.append((await admin.call("SyncApplication", sync)).command_id)
    disable = web_pb2.DisableApplicationRequest(application_id=ids.applications[1])
    await admin.call("DisableApplication", disable)
    delete = web_pb2.DeleteApplicationRequest(application_id=ids.applications[2])
    await admin.call("DeleteApplication", delete)
    password = web_pb2.UpdateProjectStaticAdminRequest(username="root", password="of-upstream")
    await admin.call("UpdateProjectStaticAdmin", password)


async def test_a_database_goes_from_ours_to_upstream_and_back(
    upstream_installation: UpstreamInstallation,
    dex: Dex,
    upstream_piped: Path,
    tools_dir: Path,
    free_port: Callable[[], int],
    tmp_path: Path,
) -> None:
    installation = upstream_installation
    ground = Ground(installation, tmp_path, tmp_path / "state")
    await asyncio.to_thread(installation.plane.stop)
    async with our_server(installation) as (plane, ours):
        ids = await ObjectWriter(plane).write(sso_of(dex), [repository(installation)])
        await ours.admin.sign_in(PROJECT, "root", PASSWORD)
        await ground.add(ours.admin, ids)
        files = await collect_insights(plane)
        written = await ours.everything(ids)
    # Upstream reads the first two of these; the others are ours.
    for name in ("applications.json", "milestone.json", "ext-days", "ext/"):
        assert any(name in file for file in files), name
    assert min(deployment_counts(written)) > 0
    await unseal(installation)

    await asyncio.to_thread(installation.plane.start)
    admin = installation.admin
    await admin.sign_in(PROJECT, "root", PASSWORD)
    theirs = AnswerReader(admin, installation.api_address, installation.address)
    assert differences(await theirs.everything(ids), written) == ""
    assert await signed_in_with(dex, admin.pages)
    commit = ground.commit("one")
    flags = (f"--config-file={ground.config(ids)}", "--insecure=true", f"--tools-dir={tools_dir}")
    admin_port = f"--admin-port={free_port()}"
    async with installation.running(upstream_piped, "piped", *flags, admin_port) as piped:
        done = await installation.eventually(lambda: ground.deployed(admin, commit), piped)
    assert DeploymentStatus(done.status) is DeploymentStatus.SUCCESS, done.status_reason
    assert '"one"' in ground.state.read_text()

    ids.logs += [(done.id, stage.id) for stage in done.stages if not stage.rollback]
    await write_to_upstream(admin, ids)
    written = await theirs.everything(ids)
    await asyncio.to_thread(installation.plane.stop)
    async with our_server(installation) as (_, ours):
        await ours.admin.sign_in(PROJECT, "root", "of-upstream")
        assert differences(await ours.everything(ids), written) == ""
