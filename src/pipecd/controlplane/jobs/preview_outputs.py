# SPDX-License-Identifier: Apache-2.0
"""The outputs of commands are kept for two days."""

from datetime import timedelta
from pathlib import PurePosixPath

from pipecd.controlplane.stores.commands import Commands
from pipecd.controlplane.stores.files import Files
from pipecd.model.moment import Now, to_unix, utc_now

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
        if command_id not in known or known[command_id].handled_at < oldest
    ]
    for path in old:
        await files.delete(path)
    return len(old)
