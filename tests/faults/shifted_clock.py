# SPDX-License-Identifier: Apache-2.0
"""Runs one of our programs with a clock that a test can step.

`python shifted_clock.py OFFSET_FILE PROGRAM ARGUMENTS…` adds the seconds in the file to the time of
day, and notices when they change. As on a real machine, monotonic clocks do not step.
"""

import os
import sys
import time
from datetime import datetime, timedelta, tzinfo
from pathlib import Path

import pipecd.model.clock
from pipecd import cli

_REREAD_SECONDS = 0.05


class SteppedClock(datetime):
    """`datetime` whose `now` is off by the seconds in a file."""

    file = Path()
    offset = 0.0
    read_at = float("-inf")

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:
        if time.monotonic() - cls.read_at > _REREAD_SECONDS:
            cls.read_at = time.monotonic()
            cls.offset = float(cls.file.read_text() or 0)
        return datetime.now(tz) + timedelta(seconds=cls.offset)


def seed_bugs(names: str) -> None:
    """Changes a program so that it is wrong, to show that the checks of the faults find it."""
    if names:
        sys.path.append(str(Path(__file__).parents[1]))
        from faults.seeded_bugs import BUGS

        for name in names.split(","):
            BUGS[name].seed()


def main() -> None:
    SteppedClock.file = Path(sys.argv[1])
    pipecd.model.clock.datetime = SteppedClock
    program, arguments = sys.argv[2], sys.argv[3:]
    sys.argv = [program, *arguments]
    seed_bugs(os.environ.get("PIPECD_FAULTS_SEEDED_BUGS", ""))
    {"pipecd": cli.main, "piped": cli.piped_main, "launcher": cli.launcher_main}[program]()


if __name__ == "__main__":
    main()
