# SPDX-License-Identifier: Apache-2.0
"""API keys, with which programs call the API of a project."""

import asyncio

from pipecd.controlplane.auth.credentials import LAST_USED_KEY, Credentials, Source, unknown_source
from pipecd.controlplane.auth.rbac import Action, Permission, Resource
from pipecd.controlplane.auth.subject import ApiKeyCaller, User, UserOrApiKey
from pipecd.controlplane.bus.signal import Bus, Signal, Topic
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases.access import Access, check_project, or_not_found
from pipecd.model.errors import Denied, UserMistake
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

    async def generate(
        self,
        name: str,
        role: APIKey.Role.ValueType,
        *,
        may_approve: bool = False,
        by: UserOrApiKey,
    ) -> str:
        """Generates a key and returns it; it cannot be read again.

        One that may approve does so in the name of its creator, who must be a user.
        """
        await self._access.require(by, _CREATE)
        _check_approving(role, may_approve, by)
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
        if may_approve:
            await self._stores.key_approvals.grant(id, by.project, by=by.name)
        await self._bus.publish(Signal(Topic.API_KEY, id, by.project))
        return key

    async def set_role(
        self,
        id: str,
        role: APIKey.Role.ValueType,
        *,
        may_approve: bool,
        by: UserOrApiKey,
    ) -> None:
        """Changes what a key may do, at once; only for operators of the control plane.

        A key approves in the name of its creator, which an administrator must not give away.
        """
        await self._access.require(by, _UPDATE)
        _check_approving(role, may_approve, by)

        def change(record: APIKey) -> None:
            check_project(by, record.project_id, "API key")
            record.role = role

        await or_not_found(self._stores.api_keys.update(id, change), "API key is not found")
        if may_approve:
            await self._stores.key_approvals.grant(id, by.project, by=by.name)
        else:
            await self._stores.key_approvals.revoke(id)
        self._credentials.invalidate(id)
        await self._bus.publish(Signal(Topic.API_KEY, id, by.project))

    async def list_approving(self, *, by: UserOrApiKey) -> frozenset[str]:
        """The ids of the keys of the project that may approve stages."""
        await self._access.require(by, _LIST)
        granted = await self._stores.key_approvals.granted(by.project)
        keys = await self._stores.api_keys.list(by.project) if granted else ()
        return frozenset(k.id for k in keys if k.id in granted and k.role == APIKey.READ_WRITE)

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


def _check_approving(role: APIKey.Role.ValueType, may_approve: bool, by: UserOrApiKey) -> None:
    if may_approve and role != APIKey.READ_WRITE:
        raise UserMistake("a read-only key cannot approve", hint="choose READ_WRITE_APPROVE")
    if may_approve and not isinstance(by, User):
        raise Denied("only a user can generate a key that approves, in the name of that user")
