# SPDX-License-Identifier: Apache-2.0
"""The table that compares what upstream's programs and ours leave behind."""

from servers.comparison import comparison_table


def test_what_is_equal_is_written_once() -> None:
    theirs = [{"count": 1}, {"count": 1, "tags": {"b": 1, "a": 2}}]
    ours = [{"count": 1}, {"count": 2, "tags": {"a": 2, "b": 1}, "more": "x"}]
    assert comparison_table(["SYNC", "CLEAN"], theirs, ours) == (
        "SYNC\n"
        "  same      count: 1\n"
        "CLEAN\n"
        "  upstream  count: 1\n"
        "  ours      count: 2\n"
        "  upstream  more: none\n"
        '  ours      more: "x"\n'
        '  same      tags: {"a": 2, "b": 1}\n'
    )
