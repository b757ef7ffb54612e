# SPDX-License-Identifier: Apache-2.0
"""Deployments that follow one another."""

from pipecd.controlplane.auth.subject import PipedCaller
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.chains import Matcher
from pipecd.proto.service import piped_pb2 as pb


class ChainRpcs:
    """The RPCs about deployment chains."""

    def __init__(self, cases: UseCases) -> None:
        self._chains = cases.chains

    async def CreateDeploymentChain(
        self, request: pb.CreateDeploymentChainRequest, caller: PipedCaller
    ) -> pb.CreateDeploymentChainResponse:
        matchers = [Matcher(m.name, m.kind, m.labels) for m in request.matchers]
        await self._chains.create(request.first_deployment, matchers, by=caller)
        return pb.CreateDeploymentChainResponse()

    async def InChainDeploymentPlannable(
        self, request: pb.InChainDeploymentPlannableRequest, caller: PipedCaller
    ) -> pb.InChainDeploymentPlannableResponse:
        turn = await self._chains.turn(
            request.deployment_id,
            request.deployment_chain_id,
            request.deployment_chain_block_index,
            by=caller,
        )
        return pb.InChainDeploymentPlannableResponse(
            plannable=turn.plannable,
            cancel=bool(turn.cancel_reason),
            cancel_reason=turn.cancel_reason,
        )
