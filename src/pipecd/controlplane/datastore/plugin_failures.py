# SPDX-License-Identifier: Apache-2.0
"""The plugins and deploy targets that each piped runs without."""

from collections import Counter
from collections.abc import Mapping, Sequence

from sqlalchemy import delete, insert, select

from pipecd.controlplane.datastore.database import Database, Transaction
from pipecd.controlplane.datastore.expressions import param
from pipecd.controlplane.datastore.schema import EXT_PLUGIN_FAILURE
from pipecd.proto.service.pluginfailures_pb2 import PluginFailure

TABLE = EXT_PLUGIN_FAILURE
OF_PIPED = TABLE.c.PipedId == param("piped")
LIST = (
    select(TABLE.c.Plugin, TABLE.c.Target, TABLE.c.Reason, TABLE.c.Since)
    .where(OF_PIPED)
    .order_by(TABLE.c.Position)
)
PLUGINS = select(TABLE.c.PipedId, TABLE.c.Plugin).distinct()
REMOVE = delete(TABLE).where(OF_PIPED)
ADD = insert(TABLE).values(
    PipedId=param("piped"),
    Position=param("position"),
    Plugin=param("plugin"),
    Target=param("target"),
    Reason=param("reason"),
    Since=param("since"),
)


class PluginFailures:
    """What all pipeds run without; each report replaces the previous one of its piped."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list(self, piped_id: str) -> tuple[PluginFailure, ...]:
        """The failures of a piped, in the order of its report."""
        rows = await self._database.query(LIST, {"piped": piped_id})
        return tuple(
            PluginFailure(plugin=plugin, target=target, reason=reason, since=since)
            for plugin, target, reason, since in rows
        )

    async def counts(self) -> Mapping[str, int]:
        """How many plugins fail, or have a deploy target that does, by piped."""
        return Counter(piped_id for piped_id, _ in await self._database.query(PLUGINS, {}))

    async def replace(self, piped_id: str, failures: Sequence[PluginFailure]) -> None:
        """Stores the failures of a piped."""

        def work(transaction: Transaction) -> None:
            transaction.execute(REMOVE, {"piped": piped_id})
            for position, failure in enumerate(failures):
                transaction.execute(
                    ADD,
                    {
                        "piped": piped_id,
                        "position": position,
                        "plugin": failure.plugin,
                        "target": failure.target,
                        "reason": failure.reason,
                        "since": failure.since,
                    },
                )

        await self._database.write(work)
