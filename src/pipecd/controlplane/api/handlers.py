# SPDX-License-Identifier: Apache-2.0
"""The base of the RPC handlers of the gRPC services, and what APIService and WebService share."""

from pipecd.controlplane.usecases import UseCases
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.service import api_pb2, web_pb2

# Clients read more with the cursor of the page.
MAX_PAGE_SIZE = 1000


def page_size(requested: int) -> int:
    """The size of a page; without one, and beyond the maximum, it is the maximum."""
    return min(requested, MAX_PAGE_SIZE) if requested > 0 else MAX_PAGE_SIZE


class RpcHandlers:
    """Handlers of some RPCs of a service: a method for each, with the name of the RPC."""

    def __init__(self, cases: UseCases) -> None:
        self._cases = cases


def application_draft(
    request: api_pb2.AddApplicationRequest | web_pb2.AddApplicationRequest,
) -> Application:
    """The application that a request adds, with the fields both services have."""
    return Application(
        name=request.name,
        piped_id=request.piped_id,
        git_path=request.git_path,
        kind=request.kind,
        platform_provider=request.platform_provider,
        description=request.description,
        labels=request.labels,
    )
