# SPDX-License-Identifier: Apache-2.0
"""Maps errors to gRPC statuses, and statuses of failed calls to errors."""

import grpc
import grpc.aio

from pipecd.model.errors import (
    AlreadyExists,
    Conflict,
    Denied,
    LeaseLost,
    NotFound,
    PipecdError,
    StorageUnavailable,
    Unauthenticated,
    Unavailable,
    Unsupported,
    UserMistake,
)

# The message of a bug; the log of the server has the traceback.
INTERNAL = "internal error, the log of the server says more"

# Statuses are sent in headers, whose total size peers limit to about 8 KiB.
MESSAGE_LIMIT = 2000

_CODES: tuple[tuple[type[PipecdError], grpc.StatusCode], ...] = (
    (UserMistake, grpc.StatusCode.INVALID_ARGUMENT),
    (Unauthenticated, grpc.StatusCode.UNAUTHENTICATED),
    (Denied, grpc.StatusCode.PERMISSION_DENIED),
    (NotFound, grpc.StatusCode.NOT_FOUND),
    (AlreadyExists, grpc.StatusCode.ALREADY_EXISTS),
    (Conflict, grpc.StatusCode.FAILED_PRECONDITION),
    (Unavailable, grpc.StatusCode.UNAVAILABLE),
    (Unsupported, grpc.StatusCode.UNIMPLEMENTED),
    # Other expected errors keep their text.
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
    """Returns the status for a caller; unexpected errors are reported without details."""
    if isinstance(error, StorageUnavailable):
        return grpc.StatusCode.UNAVAILABLE, StorageUnavailable.PUBLIC_MESSAGE
    for kind, code in _CODES:
        if isinstance(error, kind):
            text = str(error)
            if len(text) > MESSAGE_LIMIT:
                text = text[:MESSAGE_LIMIT] + "…"
            return code, text.encode("utf-8", "replace").decode()
    return grpc.StatusCode.INTERNAL, INTERNAL


def from_rpc_error(error: grpc.aio.AioRpcError) -> PipecdError:
    """Returns the error for a failed call.

    Every code that upstream retries becomes `Unavailable`, also INTERNAL and UNKNOWN.
    """
    code = error.code()
    details = error.details() or f"the call ended with {code.name}"
    if code is grpc.StatusCode.FAILED_PRECONDITION and details.startswith(LeaseLost.PREFIX):
        return LeaseLost(details.partition("; ")[0])
    return _ERRORS.get(code, Unavailable)(details)
