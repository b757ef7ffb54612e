# SPDX-License-Identifier: Apache-2.0
"""Runs readers over inputs within limits; every finding has the numbers that repeat it."""

import resource
import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from fuzz.readers import Reader
from pipecd.model.errors import PipecdError

# Seconds of the processor, so that a busy machine makes no findings.
CPU_SECONDS = 3.0
PEAK_BYTES = 200 * 1024 * 1024
_PAGE = resource.getpagesize()


@dataclass(frozen=True)
class Finding:
    """An input that broke something; `target`, `seed` and `number` repeat it."""

    target: str
    seed: str
    number: int
    what: str
    details: str

    def __str__(self) -> str:
        again = f"make fuzz TARGET={self.target!r} SEED={self.seed} INPUT={self.number}"
        return f"{self.target}: {self.what}\n  repeat: {again}\n{self.details}"


class TooSlow(BaseException):
    """An input took more than CPU_SECONDS; no `except Exception` of the reader hides it."""


def memory() -> int:
    """The resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


def peak() -> int:
    """The highest resident memory that this process ever had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@contextmanager
def cpu_limit(seconds: float) -> Iterator[None]:
    """Raises TooSlow in the block after so many seconds of the processor."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise TooSlow

    previous = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, previous)


def try_input(reader: Reader, seed: str, number: int) -> Finding | None:
    """Reads one input; returns what is wrong with the outcome, if anything."""
    content = reader.input(seed, number)
    before = peak()
    what = details = ""
    try:
        with cpu_limit(CPU_SECONDS):
            reader.read(content)
    except (PipecdError, *reader.refusals):
        pass
    except TooSlow:
        what, details = f"more than {CPU_SECONDS} s of the processor", traceback.format_exc(-5)
    except Exception as e:  # noqa: BLE001 Any other error is a finding.
        what, details = f"{type(e).__name__}: {e}"[:300], traceback.format_exc(-5)
    if not what and (grown := peak() - before) > PEAK_BYTES:
        what = f"{grown >> 20} MB of memory"
    if not what:
        return None
    return Finding(reader.name, seed, number, what, f"  input: {content[:2000]!r}\n{details}")
