# SPDX-License-Identifier: Apache-2.0
"""Many pipeds, each with a key of its own, that connect to a control plane at once.

Their keys were verified before, as after a restart: the digests are in the database, and the
stored hashes are none that bcrypt would have to compute.
"""

import asyncio
import select
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from idle_pipeds import polls, watch
from pipecd.config.controlplane import DatastoreSpec
from pipecd.controlplane.auth.verified_keys import STORED_SECONDS, VerifiedKeys
from pipecd.controlplane.cache.memory import MemoryCache
from pipecd.controlplane.datastore.open import open_datastore
from pipecd.controlplane.datastore.stores import create_stores
from pipecd.controlplane.filestore.local import LocalFiles
from pipecd.model.ids import new_id
from pipecd.proto.model.piped_pb2 import Piped, PipedKey
from pipecd.proto.model.project_pb2 import Project, ProjectStaticUser
from pipecd.secrets.keys import key_matches, new_piped_key
from pipecd.wire.credentials import piped_token
from rig.control_plane import ENCRYPTION_KEY
from rig.grpc_client import CallFailed, GrpcClient
from rig.seed import CREATED_AT, PROJECT, RegisteredPiped, deployment

TIMEOUT_SECONDS = 120.0


@dataclass(frozen=True)
class Reconnection:
    """How long it took until the last piped was served, and the errors on the way."""

    seconds: float
    errors: int
    clients: "Sequence[GrpcClient]"


def seed_fleet(datastore: DatastoreSpec, count: int) -> list[RegisteredPiped]:
    """Adds pipeds with different keys, all of them verified."""
    return asyncio.run(_seed_fleet(datastore, count))


async def _seed_fleet(datastore: DatastoreSpec, count: int) -> list[RegisteredPiped]:
    registered: list[RegisteredPiped] = []
    with TemporaryDirectory() as directory:
        files = await LocalFiles.open(Path(directory))
        async with open_datastore(datastore) as database:
            stores = create_stores(database, files, MemoryCache())
            admin = ProjectStaticUser(username="admin", password_hash="no password")
            await stores.projects.add(Project(id=PROJECT, desc="d", static_admin=admin))
            verified = VerifiedKeys(stores.verified_keys, ENCRYPTION_KEY, key_matches)
            for number in range(count):
                id, key, hashed = new_id(), new_piped_key(), f"hash {number}"
                keys = [PipedKey(hash=hashed, creator="c", created_at=CREATED_AT)]
                await stores.pipeds.add(
                    Piped(
                        id=id,
                        name=f"piped-{number}",
                        desc="d",
                        project_id=PROJECT,
                        keys=keys,
                        status=Piped.ONLINE,
                        created_at=CREATED_AT,
                        updated_at=CREATED_AT,
                    )
                )
                await stores.verified_keys.put(
                    verified.digest(key, hashed), expires_at=int(time.time()) + STORED_SECONDS
                )
                token = piped_token(PROJECT, id, key)
                registered.append(RegisteredPiped(id, token, deployment(new_id(), id)))
    return registered


def connect_all(address: str, pipeds: Sequence[RegisteredPiped]) -> Reconnection:
    """Lets all pipeds connect at once; each opens its wake-up stream and makes one call."""
    began, errors = time.monotonic(), 0
    arriving, waiting = select.epoll(), dict[int, GrpcClient]()
    clients: list[GrpcClient] = []
    for piped in pipeds:
        client = GrpcClient(address)
        client.send(watch(piped))
        client.send(next(polls(piped)))
        arriving.register(client.fileno(), select.EPOLLIN)
        waiting[client.fileno()] = client
        clients.append(client)
    while waiting and time.monotonic() < began + TIMEOUT_SECONDS:
        for number, _ in arriving.poll(1):
            if (client := waiting.get(number)) is None:
                continue
            try:
                is_served = client.receive()
            except (CallFailed, OSError):
                errors, is_served = errors + 1, True
            if is_served:
                del waiting[number]
                arriving.unregister(number)
    return Reconnection(time.monotonic() - began, errors + len(waiting), clients)
