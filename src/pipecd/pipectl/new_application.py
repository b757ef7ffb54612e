# SPDX-License-Identifier: Apache-2.0
"""Adds an application together with its deploy targets."""

from collections.abc import Mapping

from pipecd.model.errors import PipecdError, Unsupported
from pipecd.pipectl.client import Api, Connection, attempt, call
from pipecd.proto.model.deployment_pb2 import DeployTargets
from pipecd.proto.service import api_pb2 as pb
from pipecd.proto.service.application_targets_pb2 import (
    AddApplicationToTargetsRequest,
    AddApplicationToTargetsResponse,
)

Targets = Mapping[str, DeployTargets]


async def add_application(
    connection: Connection,
    application: pb.AddApplicationRequest,
    targets: Targets,
    *,
    disabled: bool = False,
) -> str:
    """Adds an application and returns its id.

    In one call, as a piped that sees it before it has its targets would deploy it without them,
    and one that is to be disabled would be deployed.
    """
    if not targets and not disabled:
        added = attempt("add application", connection.api.AddApplication(application))
        return (await added).application_id
    request = AddApplicationToTargetsRequest(
        application=application, deploy_targets_by_plugin=targets, disabled=disabled
    )
    rpc = connection.own_rpc("AddApplicationToTargets", request, AddApplicationToTargetsResponse)
    try:
        return (await attempt("add application", rpc)).application_id
    except Unsupported:
        id = await _add_in_two_steps(connection.api, application, targets)
        if disabled:
            disable = pb.DisableApplicationRequest(application_id=id)
            await attempt("disable application", connection.api.DisableApplication(disable))
        return id


async def _add_in_two_steps(
    api: Api, application: pb.AddApplicationRequest, targets: Targets
) -> str:
    """Adds an application, which is deleted again if it does not get its targets.

    Upstream's API has no call that does both.
    """
    added = await attempt("add application", api.AddApplication(application))
    application_id = added.application_id
    if not targets:
        return application_id
    update = pb.UpdateApplicationDeployTargetsRequest(
        application_id=application_id, deploy_targets_by_plugin=targets
    )
    try:
        await attempt("set the deploy targets", api.UpdateApplicationDeployTargets(update))
    except PipecdError as e:
        request = pb.DeleteApplicationRequest(application_id=application_id)
        try:
            await call(api.DeleteApplication(request))
        except PipecdError as second:
            left = f"application {application_id} was added without deploy targets"
            hint = f"delete it, which failed now: {second.message}"
            raise type(e)(f"{e.message}; {left}", hint=hint) from e
        raise type(e)(f"{e.message}; the application was not added", hint=e.hint) from e
    return application_id
