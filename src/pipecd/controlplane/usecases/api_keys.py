# SPDX-License-Identifier: Apache-2.0
"""API keys, with which programs call the API of a project."""

import asyncio

from pipecd.controlplane.auth.credentials import LAST_USED_KEY, Credentials, Source, unknown_source
from pipecd.controlplane.auth.rbac import Action, Permission, Resource
from pipecd.controlplane.auth.subject import ApiKeyCaller, UserOrApiKey
from pipecd.controlplane.bus.signal import Bus, Signal, Topic
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases.access import Access, check_project, or_not_found
from pipecd.model.ids import new_id
from pipecd.proto.model.apikey_pb2 import APIKey
from pipecd.secrets import keys

_LIST = Permission(Resource.API_KEY, Action.LIST)
_CREATE = Permission(Resource.API_KEY, Action.CREATE)
_UPDATE = Permission(Resource.API_KEY, Action.UPDATE)


class ApiKeyUseCases:
    """Generates, disables and lists the API keys of a project."""

    def __init__(self, stores: Stores, bus: Bus, access: Access, credentials: Credentials) -> None:
        self._stores, self._bus, self._access = stores, bus, access
        self._credentials = credentials

    async def generate(self, name: str, role: APIKey.Role.ValueType, *, by: UserOrApiKey) -> str:
        """Generates a key and returns it; it cannot be read again."""
        await self._access.require(by, _CREATE)
        id = new_id()
        key = keys.new_api_key(id)
        hashed = await asyncio.to_thread(keys.hash_key, key)
        record = APIKey(
            id=id,
            name=name,
            key_hash=hashed,
            project_id=by.project,
            role=role,
            creator=by.name,
        )
        await self._stores.api_keys.add(record)
        await self._bus.publish(Signal(Topic.API_KEY, id, by.project))
        return key

    async def disable(self, id: str, *, by: UserOrApiKey) -> None:
        """Disables the key at once; it cannot be enabled again."""
        await self._access.require(by, _UPDATE)

        def change(record: APIKey) -> None:
            check_project(by, record.project_id, "API key")
            record.disabled = True

        await or_not_found(self._stores.api_keys.update(id, change), "API key is not found")
        self._credentials.invalidate(id)
        await self._bus.publish(Signal(Topic.API_KEY, id, by.project))

    async def list(self, *, by: UserOrApiKey, enabled: bool | None = None) -> tuple[APIKey, ...]:
        """The keys of the project without their hashes, with the time of their last use."""
        await self._access.require(by, _LIST)
        records = await self._stores.api_keys.list(by.project, enabled=enabled)
        used = await self._stores.cache.fields(LAST_USED_KEY)
        for record in records:
            record.key_hash = keys.REDACTED
            last = used.get(record.id, b"")
            if last.isdigit():
                record.last_used_at = max(record.last_used_at, int(last))
        return records

    async def verify(self, key: str, source: Source = unknown_source) -> ApiKeyCaller:
        """The caller with this API key; Unauthenticated if the key is wrong or disabled.

        Wrong keys are counted by id and `source`.
        """
        return await self._credentials.api_key(key, source)
