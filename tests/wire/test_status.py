# SPDX-License-Identifier: Apache-2.0
"""Errors become gRPC statuses, and statuses become the same errors again."""

import grpc
import grpc.aio
import pytest

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
from pipecd.wire.status import INTERNAL, MESSAGE_LIMIT, from_rpc_error, to_status

CODE = grpc.StatusCode
KINDS = [
    (UserMistake, CODE.INVALID_ARGUMENT),
    (Unauthenticated, CODE.UNAUTHENTICATED),
    (Denied, CODE.PERMISSION_DENIED),
    (NotFound, CODE.NOT_FOUND),
    (AlreadyExists, CODE.ALREADY_EXISTS),
    (Conflict, CODE.FAILED_PRECONDITION),
    (Unavailable, CODE.UNAVAILABLE),
    (Unsupported, CODE.UNIMPLEMENTED),
]


def rpc_error(code: grpc.StatusCode, details: str | None) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details)


@pytest.mark.parametrize(("kind", "code"), KINDS)
def test_every_error_has_its_code_there_and_back(
    kind: type[PipecdError], code: grpc.StatusCode
) -> None:
    assert to_status(kind("what is wrong")) == (code, "what is wrong")
    back = from_rpc_error(rpc_error(code, "what is wrong"))
    assert type(back) is kind
    assert back.message == "what is wrong"


def test_all_errors_are_covered() -> None:
    own = {
        kind for kind in PipecdError.__subclasses__() if kind.__module__ == PipecdError.__module__
    }
    assert {kind for kind, _ in KINDS} == own


def test_a_subclass_of_an_error_has_the_code_of_its_base() -> None:
    class FileMistake(UserMistake):
        """A mistake in a file."""

    assert to_status(FileMistake("x"))[0] is CODE.INVALID_ARGUMENT


def test_the_address_of_the_database_is_only_in_the_log() -> None:
    away = StorageUnavailable(
        "the database at db.internal:5432 is unavailable", hint="check db.internal"
    )
    assert to_status(away) == (grpc.StatusCode.UNAVAILABLE, StorageUnavailable.PUBLIC_MESSAGE)


def test_the_hint_reaches_the_caller() -> None:
    assert to_status(UserMistake("no", hint="say yes"))[1] == "no; say yes"


@pytest.mark.parametrize(
    "error", [ZeroDivisionError("secret"), TimeoutError("secret"), OSError(5, "secret")]
)
def test_an_unexpected_error_is_reported_without_details(error: Exception) -> None:
    assert to_status(error) == (CODE.INTERNAL, INTERNAL)


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(code, id=code.name)
        for code in (
            CODE.INTERNAL,
            CODE.UNKNOWN,
            CODE.DEADLINE_EXCEEDED,
            CODE.RESOURCE_EXHAUSTED,
            CODE.ABORTED,
            CODE.CANCELLED,
            CODE.DATA_LOSS,
        )
    ],
)
def test_codes_that_upstream_retries_become_unavailable(code: grpc.StatusCode) -> None:
    error = from_rpc_error(rpc_error(code, None))
    assert type(error) is Unavailable
    assert str(error) == f"the call ended with {code.name}"


def test_a_text_too_long_for_a_header_is_cut() -> None:
    _, text = to_status(UserMistake("x" * 100_000))
    assert text == "x" * MESSAGE_LIMIT + "…"


def test_a_text_with_half_a_surrogate_pair_can_be_sent() -> None:
    assert to_status(UserMistake("a\ud800b"))[1] == "a?b"
