# SPDX-License-Identifier: Apache-2.0
"""The applications that pipeds found in Git and that nobody has registered yet."""

from pipecd.controlplane.cache import Cache
from pipecd.model.document import from_json
from pipecd.proto.model.common_pb2 import ApplicationInfo


def unregistered_key(project: str) -> str:
    """The key of the project's lists in the cache; each piped has a field."""
    # Upstream keeps Go's own encoding under its key, so ours has another name.
    return f"pipecd:unregistered-applications:{project}"


async def reported_unregistered(
    cache: Cache, project: str, piped: str = ""
) -> tuple[ApplicationInfo, ...]:
    """What the pipeds of the project reported last, or only the given one."""
    lists = await cache.fields(unregistered_key(project))
    return tuple(
        from_json(line, ApplicationInfo)
        for reporter, lines in lists.items()
        if piped in ("", reporter)
        for line in lines.splitlines()
    )
