# SPDX-License-Identifier: Apache-2.0
"""What stages keep per application from one deployment to the next."""

from dataclasses import dataclass

from pipecd.controlplane.auth.subject import PipedCaller
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases.access import Access, found
from pipecd.model.document import from_json, to_json
from pipecd.model.errors import UserMistake
from pipecd.proto.model.analysis_pb2 import AnalysisResult


@dataclass(frozen=True)
class SharedObject:
    """The name of something that a plugin keeps for an application."""

    application_id: str
    plugin: str
    key: str


class Objects:
    """Analysis results and the objects of plugins."""

    def __init__(self, stores: Stores, access: Access) -> None:
        self._stores, self._access = stores, access

    async def analysis_result(self, application_id: str, *, by: PipedCaller) -> AnalysisResult:
        """When the last analysis of the application began."""
        await self._access.own_application(application_id, by=by)
        content = await found(
            self._stores.files.get(_analysis_path(application_id)),
            "Entity was not found to get the most recent analysis result",
        )
        return from_json(content, AnalysisResult)

    async def put_analysis_result(
        self, application_id: str, result: AnalysisResult, *, by: PipedCaller
    ) -> None:
        await self._access.own_application(application_id, by=by)
        await self._stores.files.put(_analysis_path(application_id), to_json(result).encode())

    async def get(self, name: SharedObject, *, by: PipedCaller) -> bytes:
        path = shared_path(name)
        await self._access.own_application(name.application_id, by=by)
        return await found(
            self._stores.files.get(path), "Entity was not found to get application shared object"
        )

    async def put(self, name: SharedObject, content: bytes, *, by: PipedCaller) -> None:
        path = shared_path(name)
        await self._access.own_application(name.application_id, by=by)
        await self._stores.files.put(path, content)


def shared_path(name: SharedObject) -> str:
    """Where the object is kept; a name that leads elsewhere is refused."""
    if "/" in name.plugin:
        raise UserMistake("the name of a plugin must not contain a slash")
    path = f"application-shared-objects/{name.application_id}/{name.plugin}/{name.key}.json"
    if "\\" in path or "\0" in path or any(part in {"", ".", ".."} for part in path.split("/")):
        raise UserMistake("plugin name and key of a shared object must not contain path steps")
    return path


def _analysis_path(application_id: str) -> str:
    return f"latest-analysis-result/{application_id}.json"
