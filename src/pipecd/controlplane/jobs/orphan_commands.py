# SPDX-License-Identifier: Apache-2.0
"""Commands that no piped answered within a day are given up."""

from dataclasses import replace
from datetime import timedelta

from pipecd.controlplane.bus.signal import Bus
from pipecd.controlplane.datastore.commands import Commands
from pipecd.controlplane.usecases.commands import signals_of
from pipecd.model.clock import Now, to_unix, utc_now
from pipecd.model.command import CommandStatus
from pipecd.proto.model.command_pb2 import COMMAND_TIMEOUT, Command

GIVEN_UP_AFTER = timedelta(hours=24)


async def time_out_orphans(commands: Commands, bus: Bus, *, now: Now = utc_now) -> int:
    """Marks them as timed out and answers how many there were."""
    moment = now()

    def give_up(command: Command) -> None:
        # A piped may have answered since the list was read; its word stands.
        if command.status == CommandStatus.NOT_HANDLED_YET:
            command.status = COMMAND_TIMEOUT
            command.metadata.clear()
            command.handled_at = to_unix(moment)

    orphans = await commands.list_unhandled_before(to_unix(moment - GIVEN_UP_AFTER))
    for orphan in orphans:
        await commands.update(orphan.id, give_up)
        for signal in signals_of(orphan):
            # The piped must not begin it any more.
            await bus.publish(replace(signal, piped=orphan.piped_id))
    return len(orphans)
