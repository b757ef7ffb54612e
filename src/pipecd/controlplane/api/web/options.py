# SPDX-License-Identifier: Apache-2.0
"""What the lists of WebService have in common."""

from typing import Protocol

from pipecd.controlplane.datastore.documents import PageRequest
from pipecd.proto.service import web_pb2 as pb

Switched = (
    pb.ListApplicationsRequest.Options
    | pb.ListPipedsRequest.Options
    | pb.ListAPIKeysRequest.Options
)


class Paged(Protocol):
    """A request for one page of a list."""

    page_size: int
    cursor: str
    page_min_updated_at: int


def page_of(request: Paged) -> PageRequest:
    """Which page is asked for; a size below 1 means everything."""
    return PageRequest(
        size=max(0, request.page_size),
        cursor=request.cursor,
        min_updated_at=max(0, request.page_min_updated_at),
    )


def switch(options: Switched) -> bool | None:
    """Whether only enabled or only disabled things are asked for; None means both."""
    return options.enabled.value if options.HasField("enabled") else None
