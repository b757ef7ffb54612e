# SPDX-License-Identifier: Apache-2.0
"""The outputs of commands are kept for two days."""

from datetime import timedelta
from pathlib import PurePosixPath

from pipecd.controlplane.datastore.commands import Commands
from pipecd.controlplane.filestore import Files
from pipecd.model.clock import Now, to_unix, utc_now
from pipecd.proto.model.command_pb2 import Command

PREFIX = "command-output/"
KEPT_FOR = timedelta(hours=48)


async def remove_old_outputs(files: Files, commands: Commands, *, now: Now = utc_now) -> int:
    """Deletes outputs of commands that were handled long ago or are unknown; answers how many."""
    oldest = to_unix(now() - KEPT_FOR)
    paths = {PurePosixPath(path).stem: path for path in await files.list(PREFIX)}
    known = await commands.get_many(tuple(paths))
    old = [
        path
        for command_id, path in paths.items()
        if command_id not in known or _last_touched(known[command_id]) < oldest
    ]
    for path in old:
        await files.delete(path)
    return len(old)


def _last_touched(command: Command) -> int:
    # The output is stored a moment before the command counts as handled.
    return command.handled_at or command.created_at
