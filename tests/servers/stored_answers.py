# SPDX-License-Identifier: Apache-2.0
"""Everything that a control plane, ours or upstream's, answers about the objects of a project."""

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grpc.aio
from google.protobuf import message_factory
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message

from pipecd.model.clock import to_unix, utc_now
from pipecd.model.deployment import DeploymentStatus
from pipecd.proto.model import deployment_pb2, insight_pb2
from pipecd.proto.service import api_pb2 as api
from pipecd.proto.service import piped_pb2 as piped
from pipecd.proto.service import web_pb2 as web
from pipecd.wire.credentials import api_key, piped_token
from servers.every_object import PROJECT, SHARED_KEY, WrittenObjects
from servers.upstream import Visitor

WEB = web.DESCRIPTOR.services_by_name["WebService"]
API = api.DESCRIPTOR.services_by_name["APIService"]
PIPED = piped.DESCRIPTOR.services_by_name["PipedService"]
DAY = 86400

Request = tuple[ServiceDescriptor, str, Message]
# By the RPC and its request; the code of a refusal is a string.
Answers = dict[str, Message | str]


@dataclass(frozen=True)
class AnswerReader:
    """Sends every request that reads, with the credentials of a person, a program and a piped."""

    admin: Visitor
    api_address: str
    piped_address: str

    async def everything(self, ids: WrittenObjects) -> Answers:
        tokens = {
            API.name: (self.api_address, api_key(ids.api_key)),
            PIPED.name: (self.piped_address, piped_token(PROJECT, ids.busy, ids.busy_key)),
        }
        return {
            f"{service.name}.{rpc} {request}".strip(): await self._answer(
                service, rpc, request, tokens
            )
            for service, rpc, request in requests(ids)
        }

    async def _answer(
        self,
        service: ServiceDescriptor,
        rpc: str,
        request: Message,
        tokens: dict[str, tuple[str, str]],
    ) -> Message | str:
        try:
            if service is WEB:
                return comparable(await self.admin.call(rpc, request))
            address, token = tokens[service.name]
            answer = message_factory.GetMessageClass(service.methods_by_name[rpc].output_type)
            async with grpc.aio.insecure_channel(address) as channel:
                method: Any = channel.unary_unary(
                    f"/{service.full_name}/{rpc}",
                    request_serializer=type(request).SerializeToString,
                    response_deserializer=answer.FromString,
                )
                return comparable(await method(request, metadata=(("authorization", token),)))
        except grpc.aio.AioRpcError as e:
            return f"{e.code().name}: {e.details()}"


def requests(ids: WrittenObjects) -> Iterator[Request]:
    """Requests of the three services that read objects of the project."""
    yield from _requests_about_the_project(ids)
    yield from _requests_about_applications(ids)
    yield from _requests_about_deployments(ids)
    yield from _requests_of_a_piped(ids)
    yield from _requests_about_insights(ids)


def _requests_about_the_project(ids: WrittenObjects) -> Iterator[Request]:
    # Upstream's server crashes without the options.
    yield WEB, "GetProject", web.GetProjectRequest()
    yield WEB, "GetMe", web.GetMeRequest()
    keys = web.ListAPIKeysRequest.Options()
    yield WEB, "ListAPIKeys", web.ListAPIKeysRequest(options=keys)
    yield WEB, "ListPipeds", web.ListPipedsRequest(options=web.ListPipedsRequest.Options())
    for id in (ids.piped, ids.busy):
        yield WEB, "GetPiped", web.GetPipedRequest(piped_id=id)
        yield API, "GetPiped", api.GetPipedRequest(piped_id=id)
    for id in ids.commands:
        yield WEB, "GetCommand", web.GetCommandRequest(command_id=id)
        yield API, "GetCommand", api.GetCommandRequest(command_id=id)
    events = web.ListEventsRequest.Options()
    yield WEB, "ListEvents", web.ListEventsRequest(options=events, page_size=50)


def _requests_about_applications(ids: WrittenObjects) -> Iterator[Request]:
    every_option: tuple[dict[str, Any], ...] = (
        {},
        {"enabled": {"value": False}},
        {"labels": {"env": "dev"}},
    )
    for option in every_option:
        options = web.ListApplicationsRequest.Options(**option)
        yield WEB, "ListApplications", web.ListApplicationsRequest(options=options)
    for disabled in (False, True):
        yield API, "ListApplications", api.ListApplicationsRequest(disabled=disabled, limit=100)
    for id in ids.applications:
        yield WEB, "GetApplication", web.GetApplicationRequest(application_id=id)
        yield API, "GetApplication", api.GetApplicationRequest(application_id=id)
    for id in ids.live:
        request = web.GetApplicationLiveStateRequest(application_id=id)
        yield WEB, "GetApplicationLiveState", request


def _requests_about_deployments(ids: WrittenObjects) -> Iterator[Request]:
    page = web.ListDeploymentsRequest(page_size=200, options=web.ListDeploymentsRequest.Options())
    yield WEB, "ListDeployments", page
    for status in deployment_pb2.DeploymentStatus.values():
        options = web.ListDeploymentsRequest.Options(statuses=[status])
        yield WEB, "ListDeployments", web.ListDeploymentsRequest(options=options, page_size=200)
    yield API, "ListDeployments", api.ListDeploymentsRequest(limit=50)
    for id in ids.deployments:
        yield WEB, "GetDeployment", web.GetDeploymentRequest(deployment_id=id)
        yield API, "GetDeployment", api.GetDeploymentRequest(deployment_id=id)
    for id, stage in ids.logs:
        request = web.GetStageLogRequest(deployment_id=id, stage_id=stage)
        yield WEB, "GetStageLog", request
        yield API, "ListStageLogs", api.ListStageLogsRequest(deployment_id=id)
    traces = web.ListDeploymentTracesRequest.Options()
    request = web.ListDeploymentTracesRequest(options=traces, page_size=10)
    yield WEB, "ListDeploymentTraces", request


def _requests_of_a_piped(ids: WrittenObjects) -> Iterator[Request]:
    yield PIPED, "ListApplications", piped.ListApplicationsRequest()
    yield PIPED, "ListNotCompletedDeployments", piped.ListNotCompletedDeploymentsRequest()
    yield PIPED, "ListUnhandledCommands", piped.ListUnhandledCommandsRequest()
    yield PIPED, "GetDesiredVersion", piped.GetDesiredVersionRequest()
    yield PIPED, "ListEvents", piped.ListEventsRequest(order=piped.ASC)
    event = piped.GetLatestEventRequest(name="image-pushed", labels={"app": "cart"})
    yield PIPED, "GetLatestEvent", event
    for id in ids.deployments:
        yield PIPED, "GetDeployment", piped.GetDeploymentRequest(id=id)
    first = ids.applications[0]
    for status in (DeploymentStatus.SUCCESS, DeploymentStatus.PENDING):
        request = piped.GetApplicationMostRecentDeploymentRequest(application_id=first)
        request.status = deployment_pb2.DeploymentStatus.ValueType(status)
        yield PIPED, "GetApplicationMostRecentDeployment", request
    result = piped.GetLatestAnalysisResultRequest(application_id=first)
    yield PIPED, "GetLatestAnalysisResult", result
    plugin, key = SHARED_KEY
    shared = piped.GetApplicationSharedObjectRequest(
        application_id=first, plugin_name=plugin, key=key
    )
    yield PIPED, "GetApplicationSharedObject", shared
    for deployment, chain in ids.chains:
        for block in range(3):
            request = piped.InChainDeploymentPlannableRequest(
                deployment_id=deployment,
                deployment_chain_id=chain,
                deployment_chain_block_index=block,
            )
            yield PIPED, "InChainDeploymentPlannable", request


def _requests_about_insights(ids: WrittenObjects) -> Iterator[Request]:
    yield WEB, "GetInsightApplicationCount", web.GetInsightApplicationCountRequest()
    today = to_unix(utc_now()) // DAY * DAY
    selections: tuple[dict[str, Any], ...] = (
        {},
        {"application_id": ids.applications[0]},
        {"labels": {"tier": "front"}},
    )
    for kind in (insight_pb2.DEPLOYMENT_FREQUENCY, insight_pb2.CHANGE_FAILURE_RATE):
        for resolution in (insight_pb2.DAILY, insight_pb2.MONTHLY):
            for selection in selections:
                request = web.GetInsightDataRequest(
                    metrics_kind=kind,
                    range_from=today - 30 * DAY,
                    range_to=today,
                    resolution=resolution,
                    **selection,
                )
                yield WEB, "GetInsightData", request


def comparable(answer: Any) -> Any:
    """The answer without what the servers answer differently about the same rows."""
    fields = {field.name for field in answer.DESCRIPTOR.fields}
    if "cursor" in fields:
        # Upstream returns one after the last page, too.
        answer.ClearField("cursor")
    if "project" in fields:
        _clear_differences(answer.project)
    if "piped" in fields:
        # Only ours adds whether the piped is connected.
        answer.piped.ClearField("status")
    for key in getattr(answer, "keys", ()):
        # Upstream shows the hash of a key that was never used; the requests themselves use one.
        key.key_hash, key.last_used_at = "redacted", 0
    if "applications" in fields:
        # Upstream lists the deleted ones, too, and its console hides them.
        _replace(answer.applications, [one for one in answer.applications if not one.deleted])
    for name in ("keys", "pipeds", "applications", "deployments", "commands"):
        if name in fields:
            # Upstream lists some of these as it stores them.
            _replace(getattr(answer, name), sorted(getattr(answer, name), key=lambda one: one.id))
    if "cancel_reason" in fields:
        # A sentence for people.
        answer.ClearField("cancel_reason")
    if "counts" in fields:
        _replace(answer.counts, sorted(answer.counts, key=str))
    return answer


def _clear_differences(project: Any) -> None:
    # Upstream shows the client of OpenID Connect in plain text.
    project.sso.oidc.client_id = project.sso.oidc.client_secret = "redacted"
    # Chains are a resource of the built-in roles of ours; upstream denies them to everybody.
    _replace(project.rbac_roles, [role for role in project.rbac_roles if not role.is_builtin])
    # Unsealing the secret is a change.
    project.ClearField("updated_at")


def _replace(field: Any, objects: list[Any]) -> None:
    del field[:]
    field.extend(objects)


def differences(answers: Answers, expected: Answers) -> str:
    """What differs between the answers of two servers as a diff of each, and what is refused."""
    lines = [f"{what}: {answer}" for what, answer in expected.items() if isinstance(answer, str)]
    for what, answer in expected.items():
        if answers[what] != answer:
            lines += difflib.unified_diff(
                str(answer).splitlines(),
                str(answers[what]).splitlines(),
                fromfile=f"{what} of the first",
                tofile="of the second",
                lineterm="",
            )
    return "\n".join(lines)
