# SPDX-License-Identifier: Apache-2.0
"""The one edge where our errors become gRPC statuses, and statuses of others our errors."""

import grpc
import grpc.aio

from pipecd.model.errors import (
    AlreadyExists,
    Conflict,
    Denied,
    NotFound,
    PipecdError,
    StorageUnavailable,
    Unauthenticated,
    Unavailable,
    Unsupported,
    UserMistake,
)

# What a caller learns about a fault of ours; the log of the server has the traceback.
INTERNAL = "internal error, the log of the server says more"

# Statuses travel in headers, whose total size peers limit to 8 KiB or so.
LONGEST = 2000

_CODES: tuple[tuple[type[PipecdError], grpc.StatusCode], ...] = (
    (UserMistake, grpc.StatusCode.INVALID_ARGUMENT),
    (Unauthenticated, grpc.StatusCode.UNAUTHENTICATED),
    (Denied, grpc.StatusCode.PERMISSION_DENIED),
    (NotFound, grpc.StatusCode.NOT_FOUND),
    (AlreadyExists, grpc.StatusCode.ALREADY_EXISTS),
    (Conflict, grpc.StatusCode.FAILED_PRECONDITION),
    (Unavailable, grpc.StatusCode.UNAVAILABLE),
    (Unsupported, grpc.StatusCode.UNIMPLEMENTED),
    # An expected failure of no particular kind keeps its text.
    (PipecdError, grpc.StatusCode.INTERNAL),
)

_ERRORS: dict[grpc.StatusCode, type[PipecdError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: UserMistake,
    grpc.StatusCode.OUT_OF_RANGE: UserMistake,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.PERMISSION_DENIED: Denied,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.ALREADY_EXISTS: AlreadyExists,
    grpc.StatusCode.FAILED_PRECONDITION: Conflict,
    grpc.StatusCode.UNIMPLEMENTED: Unsupported,
}


def to_status(error: BaseException) -> tuple[grpc.StatusCode, str]:
    """The status a caller gets; what we did not expect is told without details."""
    if isinstance(error, StorageUnavailable):
        return grpc.StatusCode.UNAVAILABLE, StorageUnavailable.PUBLIC_MESSAGE
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code, _sendable(str(error))
    return grpc.StatusCode.INTERNAL, INTERNAL


def from_rpc_error(error: grpc.aio.AioRpcError) -> PipecdError:
    """The error of ours that a failed call means.

    Every code that upstream retries becomes `Unavailable`, also INTERNAL and UNKNOWN.
    """
    code = error.code()
    details = error.details() or f"the call ended with {code.name}"
    return _ERRORS.get(code, Unavailable)(details)


def _sendable(text: str) -> str:
    if len(text) > LONGEST:
        text = text[:LONGEST] + "…"
    return text.encode("utf-8", "replace").decode()
