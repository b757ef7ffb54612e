# SPDX-License-Identifier: Apache-2.0
"""What PostgreSQL complains about, sorted by who must act."""

from collections.abc import Callable

import psycopg

from pipecd.controlplane.datastore.database import Duplicate
from pipecd.controlplane.datastore.engine.link import (
    Collided,
    Lost,
    cannot_hold,
    full,
    locked_out,
    not_permitted,
    too_slow,
    unreachable,
)
from pipecd.model.errors import PipecdError

# States by their first characters; the longest that fits decides.
VERDICTS: dict[str, Callable[[str], Exception]] = {
    "23505": Duplicate,
    # A serialisation that failed, a deadlock, a lock that did not come.
    "40": Collided,
    "55P03": Collided,
    # The connection is broken, the server stops, or it has become a replica that may not write.
    "08": Lost,
    "57P": Lost,
    "25006": Lost,
    "57014": too_slow,
    "53": full,
    "42501": not_permitted,
    "22": cannot_hold,
    "23502": cannot_hold,
    "54": cannot_hold,
}
# A wrong password, an unknown user, an unknown database.
DENIED = ("28", "3D000", "42501")


def text_of(error: psycopg.Error) -> str:
    return error.diag.message_primary or str(error).strip().partition("\n")[0]


def while_running(error: psycopg.Error) -> Exception:
    """The error of a statement: to be repeated, to be told, or unexpected."""
    state = error.sqlstate
    if state is None:
        # Without a state it does not come from the server, but from the way to it.
        is_lost = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
        return Lost(text_of(error)) if is_lost else error
    for length in range(len(state), 1, -1):
        if verdict := VERDICTS.get(state[:length]):
            return verdict(text_of(error))
    return error


def while_connecting(error: psycopg.Error, name: str) -> PipecdError:
    text = str(error).strip().rpartition("\n")[2]
    # libpq reports what the server said while connecting without its state.
    denied = ("password authentication failed", "does not exist", "no pg_hba.conf entry")
    is_denied = (error.sqlstate or "").startswith(DENIED) or any(words in text for words in denied)
    return locked_out(name, text) if is_denied else unreachable(name, text)
