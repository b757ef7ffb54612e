# SPDX-License-Identifier: Apache-2.0
"""Which line of a log is its first error, and what is copied of it."""

import pytest

from pipecd.controlplane.console.first_error import (
    SHOWN_ANYWAY,
    ErrorExcerpt,
    first_error,
    is_error,
    markdown,
)
from pipecd.controlplane.datastore.log_file import LogFile, StoredLog, format_log
from pipecd.proto.model.logblock_pb2 import ERROR, INFO, LogBlock


@pytest.mark.parametrize(
    "line",
    [
        "ERROR: cannot find module 'tax-rates'",
        "error: failed to push some refs",
        "[ERROR] build failed",
        "2026-01-02 03:04:05 ERROR c.e.Shop - cannot start",
        "npm ERR! code ENOENT",
        "fatal: not a git repository",
        "panic: runtime error: index out of range",
        "Traceback (most recent call last):",
        "ModuleNotFoundError: No module named 'tax'",
        "java.lang.IllegalStateException: no rates",
        'time="…" level=error msg="no rates"',
        '{"level":"error","msg":"no rates"}',
    ],
)
def test_lines_that_programs_write_when_they_fail(line: str) -> None:
    assert is_error(line)


@pytest.mark.parametrize(
    "line",
    [
        "0 errors, 3 warnings",
        "tests/test_errors.py passed",
        "step 12 of the build",
        "no failures",
        "the error rate is 0.1 %",
        "Compiling error_log v1.2",
        "terror: a novel",
    ],
)
def test_lines_that_only_mention_errors(line: str) -> None:
    assert not is_error(line)


def stored(texts: dict[int, str], length: int, errors: tuple[int, ...] = ()) -> StoredLog:
    """A log whose lines are counted from one; the later half is not in its file yet."""
    blocks = [
        LogBlock(
            index=n,
            log=texts.get(n, f"step {n}"),
            severity=ERROR if n in errors else INFO,
            created_at=1,
        )
        for n in range(1, length + 1)
    ]
    content = format_log(LogFile(tuple(blocks[: length // 2])))
    return StoredLog.merged(content, tuple(blocks[length // 2 :]), "log", completed=True)


@pytest.mark.parametrize(
    ("log", "number"),
    [
        pytest.param(stored({10: "error: a", 12: "error: b"}, 100), 10, id="the first of two"),
        pytest.param(stored({80: "error: a"}, 100), 80, id="a line that is not in the file yet"),
        pytest.param(stored({}, 100, errors=(7, 90)), 7, id="by its severity"),
        pytest.param(stored({10: "\x1b[31merror\x1b[0m: a"}, 100), 10, id="with colours"),
        pytest.param(stored({10: "error: a\rdone    "}, 100), 0, id="overwritten by progress"),
        pytest.param(
            stored({10: "\x1b[1m" * 600 + "error: a"}, 100), 0, id="far from the beginning"
        ),
        pytest.param(stored({95: "error: a"}, 100, errors=(100,)), 0, id="shown at the end anyway"),
        pytest.param(stored({3: "error: a"}, SHOWN_ANYWAY), 0, id="a short log"),
        pytest.param(stored({}, 100, errors=(100,)), 0, id="only the last line says it"),
        pytest.param(stored({}, 0), 0, id="an empty log"),
    ],
)
def test_the_first_error(log: StoredLog, number: int) -> None:
    found = first_error(log)
    assert (found.number if found else 0) == number


def test_the_lines_around_an_error() -> None:
    found = first_error(stored({2: "error: a", 3: "x" * 1000}, 100))
    assert found
    assert (found.first, found.number, found.lines[:2]) == (1, 2, ("step 1", "error: a"))
    after = found.lines[2:]
    assert (len(after), len(after[0]), after[1]) == (6, 501, "step 4")


def test_an_error_is_copied_as_markdown_that_its_text_does_not_break() -> None:
    error = ErrorExcerpt(5, 4, ("```", "error: a"))
    assert markdown("cart: BUILD failed", "exited with code 1", "https://x/#L5", error) == (
        "**cart: BUILD failed**: exited with code 1\n\n````\n```\nerror: a\n````\n\n"
        "[Line 5](https://x/#L5)\n"
    )
