# SPDX-License-Identifier: Apache-2.0
"""The few ways a request can fail, chosen by who must act.

PipecdError
├─ UserMistake       the caller must change the input; retrying does not help
│  └─ NoDriver       the installation lacks an extra
├─ Unauthenticated   the caller did not prove who they are
├─ Denied            the caller may not do this
├─ NotFound          the thing does not exist
├─ AlreadyExists     the thing exists already
├─ Conflict          the thing is in a state that does not allow this now
│  └─ LeaseLost      another process with the id of this piped has taken over; this one must end
├─ Unavailable       the other side is unavailable; retry later
│  └─ StorageUnavailable  the database or filestore is unavailable; only the log says which
└─ Unsupported       the other side does not offer this call

They become a gRPC status or an exit code at one edge only (pipecd.wire.status, the command lines).
"""


class PipecdError(Exception):
    """An expected failure: `message` says what is wrong, `hint` what the reader can do."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message


class UserMistake(PipecdError):
    """The input is invalid; only the user can fix it."""


class NoDriver(UserMistake):
    """The configuration needs a driver that is not installed."""

    def __init__(self, what: str, *, extra: str) -> None:
        super().__init__(
            f"this installation has no driver for {what}",
            hint=f"install the extra {extra} of pipecd, from the source that pipecd came from",
        )


class Unauthenticated(PipecdError):
    """The credentials are missing, malformed or wrong."""


class Denied(PipecdError):
    """The caller is authenticated but not authorized."""


class NotFound(PipecdError):
    """The requested thing does not exist."""


class AlreadyExists(PipecdError):
    """A thing with this identity exists already."""


class Conflict(PipecdError):
    """The state of the thing does not allow this now."""


class LeaseLost(Conflict):
    """Another process with the id of this piped has taken over."""

    # Pipeds recognize the error by the beginning of its message.
    PREFIX = "another piped with the id "

    def __init__(self, message: str) -> None:
        super().__init__(
            message,
            hint="only one piped may run with an id: stop one of the two, or register a second "
            "piped, which has an id and a key of its own",
        )


class Unavailable(PipecdError):
    """The other side cannot be reached or is overloaded; the same call may succeed later."""


class StorageUnavailable(Unavailable):
    """The database or the filestore is unavailable.

    `message` is for operators and may name hosts; callers get `PUBLIC_MESSAGE`.
    """

    PUBLIC_MESSAGE = "the control plane cannot reach its data right now; try again later"


class Unsupported(PipecdError):
    """The other side does not offer this; callers continue without it."""
