# SPDX-License-Identifier: Apache-2.0
"""What MySQL and MariaDB complain about, sorted by who must act."""

from collections.abc import Callable

from pymysql import err

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

# A deadlock, a lock that did not come, a row that changed since it was read.
COLLISIONS = frozenset({1213, 1205, 1020, 1637})
# The server is stopping, has killed the connection, or has become a replica that may not write;
# numbers of the client library are all about the connection.
GOING = frozenset({1053, 1077, 1079, 1152, 1158, 1159, 1160, 1161, 1290, 1836, 1927, 3032, 4031})
CLIENT_ERRORS = frozenset(range(2000, 3000))
FULL = frozenset({1021, 1114, 1040, 1203, 1226})
DENIED = frozenset({1044, 1045, 1698, 1049, 1142, 1227, 3118})
# Too long, out of range, not in the character set, null, too large a packet, no JSON.
CANNOT_HOLD = frozenset({1406, 1264, 1366, 1048, 1153, 3140, 3141, 4025})
TOO_SLOW = frozenset({3024, 1969})

VERDICTS: tuple[tuple[frozenset[int], Callable[[str], Exception]], ...] = (
    (frozenset({1062}), Duplicate),
    (COLLISIONS, Collided),
    (GOING | CLIENT_ERRORS, Lost),
    (FULL, full),
    (DENIED, not_permitted),
    (CANNOT_HOLD, cannot_hold),
    (TOO_SLOW, too_slow),
)


def number_of(error: BaseException) -> int:
    first: object = error.args[0] if error.args else 0
    return first if isinstance(first, int) else 0


def text_of(error: BaseException) -> str:
    """The words of the server without its number."""
    return str(error.args[1]) if len(error.args) > 1 else str(error)


def while_running(error: Exception) -> Exception:
    """The error of a statement: to be repeated, to be told, or unexpected."""
    # A connection that was closed under us shows in several ways in the driver.
    if isinstance(error, OSError | err.InterfaceError | err.InternalError | AttributeError):
        return Lost(text_of(error))
    number = number_of(error)
    return next((v(text_of(error)) for numbers, v in VERDICTS if number in numbers), error)


def while_connecting(error: Exception, name: str) -> PipecdError:
    told = locked_out if number_of(error) in DENIED else unreachable
    return told(name, text_of(error))
