# SPDX-License-Identifier: Apache-2.0
"""The commands a piped has to handle."""

from pipecd.controlplane.auth.subject import PipedCaller
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.commands import Handled
from pipecd.model.command import CommandStatus
from pipecd.proto.service import piped_pb2 as pb


class CommandRpcs:
    """The RPCs about commands."""

    def __init__(self, cases: UseCases) -> None:
        self._commands = cases.commands

    async def ListUnhandledCommands(
        self, _request: pb.ListUnhandledCommandsRequest, caller: PipedCaller
    ) -> pb.ListUnhandledCommandsResponse:
        commands = await self._commands.unhandled_of(by=caller)
        return pb.ListUnhandledCommandsResponse(commands=commands)

    async def ReportCommandHandled(
        self, request: pb.ReportCommandHandledRequest, caller: PipedCaller
    ) -> pb.ReportCommandHandledResponse:
        report = Handled(
            command_id=request.command_id,
            status=CommandStatus(request.status),
            handled_at=request.handled_at,
            metadata=request.metadata,
            output=request.output,
        )
        await self._commands.handled(report, by=caller)
        return pb.ReportCommandHandledResponse()
