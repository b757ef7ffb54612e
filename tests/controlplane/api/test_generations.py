# SPDX-License-Identifier: Apache-2.0
"""Pipeds v0 and v1 on one control plane: lists and filters contain both."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc.aio
import pytest
from google.protobuf.message import Message

from pipecd.controlplane.auth.subject import PipedCaller, User
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.chains import Matcher
from pipecd.model.ids import new_id
from pipecd.proto.model import common_pb2 as common
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import Deployment, DeployTargets
from pipecd.proto.model.piped_pb2 import Piped
from pipecd.proto.service import api_pb2, web_pb2
from pipecd.proto.service.api_pb2_grpc import APIServiceStub
from pipecd.proto.service.piped_pb2 import ReportPipedMetaRequest
from pipecd.proto.service.web_pb2_grpc import WebServiceStub

TARGETS = DeployTargets(deploy_targets=["dev", "prod"])


@dataclass(frozen=True)
class Both:
    """An application of v0 and one of v1, each with a deployment, by name."""

    names: dict[str, str]
    api: Any
    web: Callable[[str, Message], Any]

    def named(self, things: Any) -> set[str]:
        return {self.names[thing.id] for thing in things}


@pytest.fixture
async def both(
    *,
    cases: UseCases,
    application: Application,
    new_deployment: Callable[[], Deployment],
    piped: PipedCaller,
    admin: User,
    api_channel: grpc.aio.Channel,
    web_channel: grpc.aio.Channel,
    cookie: Callable[[User], Any],
) -> Both:
    registered = await cases.pipeds.register("second", "", by=admin)
    second = PipedCaller(admin.project, registered.id)
    repo = common.ApplicationGitRepository(id="site", remote="git@h:o/r", branch="main")
    plugin = Piped.Plugin(name="terraform", deploy_targets=TARGETS.deploy_targets)
    meta = ReportPipedMetaRequest(version="v1.0.0", repositories=[repo], plugins=[plugin])
    await cases.pipeds.report_meta(meta, by=second)
    draft = Application(
        name="infra",
        piped_id=second.piped,
        git_path=common.ApplicationGitPath(repo=repo, path="apps/infra"),
        deploy_targets_by_plugin={"terraform": TARGETS},
        labels={"env": "dev", "kind": "TERRAFORM"},
    )
    newer = await cases.applications.get(await cases.applications.add(draft, by=admin), by=admin)
    first, other = new_deployment(), new_deployment()
    other.id, other.application_id, other.application_name = new_id(), newer.id, newer.name
    other.piped_id = second.piped
    other.deploy_targets_by_plugin["terraform"].CopyFrom(TARGETS)
    other.labels.update(newer.labels)
    await cases.deployment_reports.create(first, by=piped)
    await cases.deployment_reports.create(other, by=second)
    stub = WebServiceStub(web_channel)
    return Both(
        {application.id: "v0", newer.id: "v1", first.id: "v0", other.id: "v1"},
        APIServiceStub(api_channel),
        lambda name, request: getattr(stub, name)(request, metadata=cookie(admin)),
    )


@pytest.mark.parametrize(
    ("options", "found"),
    [
        pytest.param({}, {"v0", "v1"}, id="no filter"),
        pytest.param({"labels": {"env": "dev"}}, {"v0", "v1"}, id="a label that both have"),
        pytest.param({"labels": {"kind": "TERRAFORM"}}, {"v1"}, id="a kind that is a label"),
        pytest.param({"labels": {"kind": "ECS"}}, set[str](), id="a kind without applications"),
    ],
)
async def test_lists_of_applications_and_deployments_with(
    both: Both, options: dict[str, Any], found: set[str]
) -> None:
    web, api = both.web, both.api
    applications = web_pb2.ListApplicationsRequest.Options(**options)
    request = web_pb2.ListApplicationsRequest(options=applications)
    assert both.named((await web("ListApplications", request)).applications) == found
    deployments = web_pb2.ListDeploymentsRequest.Options(**options)
    listed = await web("ListDeployments", web_pb2.ListDeploymentsRequest(options=deployments))
    assert both.named(listed.deployments) == found
    by_key = await api.ListApplications(api_pb2.ListApplicationsRequest(**options))
    assert both.named(by_key.applications) == found
    by_key = await api.ListDeployments(api_pb2.ListDeploymentsRequest(**options))
    assert both.named(by_key.deployments) == found


async def test_an_application_keeps_the_fields_of_its_version(both: Both) -> None:
    listed = await both.web("ListApplications", web_pb2.ListApplicationsRequest())
    by_name = {both.names[a.id]: a for a in listed.applications}
    assert by_name["v0"].platform_provider
    assert not by_name["v0"].deploy_targets_by_plugin
    assert by_name["v1"].deploy_targets_by_plugin["terraform"] == TARGETS
    assert by_name["v1"].platform_provider == ""


async def test_pipeds_are_listed_with_their_providers_or_plugins(both: Both) -> None:
    listed = await both.web("ListPipeds", web_pb2.ListPipedsRequest(with_status=True))
    offers = {
        piped.name: ([p.name for p in piped.platform_providers], [p.name for p in piped.plugins])
        for piped in listed.pipeds
    }
    assert offers["second"] == ([], ["terraform"])
    assert len(offers) == 2


async def test_a_chain_contains_applications_of_v0_and_v1(
    both: Both, cases: UseCases, new_deployment: Callable[[], Deployment], piped: PipedCaller
) -> None:
    made = new_deployment()
    await cases.chains.create(made, [Matcher(labels={"kind": "TERRAFORM"})], by=piped)
    chains = await both.web("ListDeploymentChains", web_pb2.ListDeploymentChainsRequest())
    (chain,) = chains.deployment_chains
    follower = chain.blocks[1].nodes[0].application_ref
    assert both.names[follower.application_id] == "v1"


async def test_an_application_is_migrated_to_v1(both: Both, application: Application) -> None:
    request = api_pb2.UpdateApplicationDeployTargetsRequest(
        application_id=application.id, deploy_targets_by_plugin={"kubernetes": TARGETS}
    )
    await both.api.UpdateApplicationDeployTargets(request)
    got = await both.web(
        "GetApplication", web_pb2.GetApplicationRequest(application_id=application.id)
    )
    assert got.application.deploy_targets_by_plugin["kubernetes"] == TARGETS
