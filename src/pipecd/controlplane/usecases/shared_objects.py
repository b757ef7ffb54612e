# SPDX-License-Identifier: Apache-2.0
"""Analysis results and plugins' shared objects, stored per application across deployments."""

from dataclasses import dataclass

from pipecd.controlplane.auth.subject import PipedCaller
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases.access import Access, or_not_found
from pipecd.model.document import from_json, to_json
from pipecd.model.errors import UserMistake
from pipecd.proto.model.analysis_pb2 import AnalysisResult


@dataclass(frozen=True)
class SharedObjectKey:
    """The key of an object that a plugin stores for an application."""

    application_id: str
    plugin: str
    key: str


class SharedObjects:
    """Stores analysis results and the shared objects of plugins."""

    def __init__(self, stores: Stores, access: Access) -> None:
        self._stores, self._access = stores, access

    async def analysis_result(self, application_id: str, *, by: PipedCaller) -> AnalysisResult:
        """The latest analysis result of the application."""
        await self._access.own_application(application_id, by=by)
        content = await or_not_found(
            self._stores.files.get(_analysis_path(application_id)),
            "Entity was not found to get the most recent analysis result",
        )
        return from_json(content, AnalysisResult)

    async def put_analysis_result(
        self, application_id: str, result: AnalysisResult, *, by: PipedCaller
    ) -> None:
        await self._access.own_application(application_id, by=by)
        await self._stores.files.put(_analysis_path(application_id), to_json(result).encode())

    async def get(self, key: SharedObjectKey, *, by: PipedCaller) -> bytes:
        path = shared_path(key)
        await self._access.own_application(key.application_id, by=by)
        return await or_not_found(
            self._stores.files.get(path), "Entity was not found to get application shared object"
        )

    async def put(self, key: SharedObjectKey, content: bytes, *, by: PipedCaller) -> None:
        path = shared_path(key)
        await self._access.own_application(key.application_id, by=by)
        await self._stores.files.put(path, content)


def shared_path(key: SharedObjectKey) -> str:
    """The path of the object in the filestore; UserMistake if the key would leave it."""
    if "/" in key.plugin:
        raise UserMistake("the name of a plugin must not contain a slash")
    path = f"application-shared-objects/{key.application_id}/{key.plugin}/{key.key}.json"
    if "\\" in path or "\0" in path or any(part in {"", ".", ".."} for part in path.split("/")):
        raise UserMistake("plugin name and key of a shared object must not contain path segments")
    return path


def _analysis_path(application_id: str) -> str:
    return f"latest-analysis-result/{application_id}.json"
