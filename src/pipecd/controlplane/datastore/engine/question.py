# SPDX-License-Identifier: Apache-2.0
"""A single question sees one state by itself; a transaction is begun only for a second one."""

from collections.abc import Sequence

from pipecd.controlplane.datastore.database import NOTHING, AnySelect, Reading, Row, Values


class AskedTwice(Exception):
    """The work has a second question, which must see the same state as the first."""


class OneQuestion:
    """Answers a single question, for which no transaction has to be begun and ended."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._asked = False

    def rows(self, statement: AnySelect, values: Values = NOTHING) -> Sequence[Row]:
        if self._asked:
            raise AskedTwice
        self._asked = True
        return self._reading.rows(statement, values)
