# SPDX-License-Identifier: Apache-2.0
"""What SQLite is told about its tables when it chooses an index.

It would count by itself, but only now and then, and what it counted in a young installation makes
the lists of a grown one slow. Plans that suit a large installation do no harm to a small one, so it
is told of a large one from the beginning.
"""

import sqlite3

ROWS = 200_000
# How many different values a column has; the primary key of a table has one for every row.
DIFFERENT = {
    "ProjectId": 10,
    "Disabled": 2,
    "Kind": 6,
    "Status": 7,
    "SyncState_Status": 6,
    "PipedId": 100,
    "LabelKey": 5,
    "LabelValue": 50,
    "Name": 10_000,
    "EventKey": 10_000,
    "ApplicationId": 10_000,
    "ApplicationName": 10_000,
}
OTHERWISE = 50_000


def tell_statistics(connection: sqlite3.Connection) -> None:
    """Replaces whatever is known of the tables."""
    # The table of statistics cannot be created, but it comes into being with any of them.
    connection.execute('ANALYZE "ExtMeta"')
    connection.execute("DELETE FROM sqlite_stat1")
    indexes = connection.execute("SELECT tbl_name, name FROM sqlite_master WHERE type = 'index'")
    for table, index in indexes.fetchall():
        columns = connection.execute("SELECT name FROM pragma_index_info(?)", (index,)).fetchall()
        is_unique = index.startswith("sqlite_autoindex_")
        statistic = _statistic([name for (name,) in columns], is_unique=is_unique)
        row = (table, index, statistic)
        connection.execute("INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES (?, ?, ?)", row)
    connection.execute("ANALYZE sqlite_schema")


def _statistic(columns: list[str], *, is_unique: bool) -> str:
    """The number of rows, then how many share the first column, the first two, and so on."""
    shared = [ROWS]
    for name in columns:
        shared.append(max(1, shared[-1] // DIFFERENT.get(name, OTHERWISE)))
    if is_unique:
        shared[-1] = 1
    return " ".join(map(str, shared))
