# SPDX-License-Identifier: Apache-2.0
"""What PostgreSQL complains about, sorted by who must act."""

from collections.abc import Callable

import psycopg

from pipecd.controlplane.datastore.database import Duplicate
from pipecd.controlplane.datastore.engine.link import Collided, Lost
from pipecd.model.errors import PipecdError, StoreAway, UserMistake

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
    "57014": lambda _: StoreAway("the database took too long to answer", hint="try again later"),
    "53": lambda text: StoreAway(
        f"the database has no room left: {text}", hint="look at its disk and limits"
    ),
    "42501": lambda text: StoreAway(
        f"the database refuses us: {text}", hint="look at the rights of its user"
    ),
    "22": lambda text: UserMistake(f"the database cannot hold this: {text}"),
    "23502": lambda text: UserMistake(f"the database cannot hold this: {text}"),
    "54": lambda text: UserMistake(f"the database cannot hold this: {text}"),
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
    if (error.sqlstate or "").startswith(DENIED) or any(words in text for words in denied):
        return UserMistake(
            f"the database {name} does not let us in: {text}",
            hint="check the user, the password and the name of the database",
        )
    return StoreAway(
        f"the database {name} cannot be reached: {text}",
        hint="check that the server runs and that the address is right",
    )
