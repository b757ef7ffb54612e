# SPDX-License-Identifier: Apache-2.0
"""Fuzzes for as long as wanted: `make fuzz SECONDS=3600`.

Every target gets the same share of the time, in a process of its own that is watched: a crash, a
hang, memory that grows and an unexpected error are findings. Each one is printed with the command
that repeats it; the exit code tells whether there were any.
"""

import argparse
import asyncio
import logging
import multiprocessing
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import count, islice, takewhile
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

from fuzz.limits import Finding, memory, peak, try_input
from fuzz.readers import readers
from fuzz.wire import ENDPOINTS, ROUND, fuzz_endpoint, open_plane
from pipecd.secrets import keys

# A process that makes no progress is stuck in code that no limit can interrupt: after so many seconds
# of the processor it loops, after so many minutes it waits, also on a busy machine.
HANG_CPU_SECONDS = 60.0
HANG_SECONDS = 900.0
# Memory is compared with what it was after this many inputs.
WARM_UP = 2_000
GROWN_BYTES = 150 * 1024 * 1024
MAX_FINDINGS = 25


def fuzz_reader(
    name: str, seed: str, numbers: Iterator[int], progress: Callable[[int], None]
) -> Iterator[Finding]:
    reader = readers()[name]
    before, tried = 0, 0
    for number in numbers:
        progress(number)
        if finding := try_input(reader, seed, number):
            yield finding
        tried += 1
        if tried == WARM_UP:
            before = memory()
    if before and (grown := memory() - before) > GROWN_BYTES:
        yield Finding(name, seed, 0, f"memory grew by {grown >> 20} MB in {tried} inputs", "")


async def fuzz_round(
    name: str, directory: Path, seed: str, numbers: Iterable[int], progress: Callable[[int], None]
) -> tuple[list[Finding], Counter[str]]:
    async with open_plane(directory) as plane:
        return await fuzz_endpoint(ENDPOINTS[name], plane, seed, numbers, progress)


def fuzz_wire(
    name: str, seed: str, numbers: Iterator[int], progress: Callable[[int], None]
) -> Iterator[Finding]:
    """Fuzzes in rounds; memory is compared between them."""
    answers, sizes = Counter[str](), list[int]()
    while not answers or answers.total() == ROUND * len(sizes):
        with tempfile.TemporaryDirectory() as directory:
            calls = islice(numbers, ROUND)
            findings, counted = asyncio.run(
                fuzz_round(name, Path(directory), seed, calls, progress)
            )
            yield from findings
            answers.update(counted)
        sizes.append(memory())
    if (grown := sizes[-1] - sizes[0]) > GROWN_BYTES:
        what = f"memory grew by {grown >> 20} MB in {answers.total()} calls"
        yield Finding(name, seed, 0, what, "")
    if not answers["OK"]:
        yield Finding(name, seed, 0, f"no call succeeded: {dict(answers)}", "")


def work(name: str, seed: str, start: int, seconds: float, reached: Any, reports: Any) -> None:
    """The process of one target."""
    keys.COST = 4
    # uvicorn logs every request that is not HTTP.
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)

    def progress(number: int) -> None:
        reached.value = max(reached.value, number)

    def numbers() -> Iterator[int]:
        """Begins with the first use, so that a slow start of the process does not count."""
        end = time.monotonic() + seconds
        yield from takewhile(lambda _: time.monotonic() < end, count(start))

    fuzz = fuzz_wire if name in ENDPOINTS else fuzz_reader
    for finding in fuzz(name, seed, numbers(), progress):
        reports.put(finding)
    reports.put(peak())


def cpu_seconds(process: SpawnProcess) -> float:
    """The time of the processor that a process has used; 0 if it has ended."""
    try:
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Campaign:
    """The findings and figures of a run."""

    def __init__(self, seed: str) -> None:
        self.seed = seed
        self.findings: list[Finding] = []
        self.inputs = 0
        self._peak = 0

    def run(self, name: str, seconds: float) -> None:
        """Fuzzes a target; a process that dies or hangs is replaced until the time is over."""
        context = multiprocessing.get_context("spawn")
        end, start, known, self._peak = time.monotonic() + seconds, 0, len(self.findings), 0
        while (rest := end - time.monotonic()) > 0:
            reached, reports = context.Value("q", start - 1), context.SimpleQueue()
            arguments = (name, self.seed, start, rest, reached, reports)
            process = context.Process(target=work, args=arguments)
            process.start()
            what = self._watch(process, reached, reports)
            if what:
                self._found(Finding(name, self.seed, reached.value, what, ""))
            start = reached.value + 1
            if len(self.findings) - known >= MAX_FINDINGS:
                break
        self.inputs += start
        found = len(self.findings) - known
        print(
            f"{name:32} {start:>9} inputs {found:>4} findings {self._peak >> 20:>6} MB", flush=True
        )

    def _found(self, finding: Finding) -> None:
        self.findings.append(finding)
        print(finding, flush=True)

    def _receive(self, reports: Any) -> None:
        while not reports.empty():
            match reports.get():
                case int() as highest:
                    self._peak = max(self._peak, highest)
                case finding:
                    self._found(finding)

    def _watch(self, process: SpawnProcess, reached: Any, reports: Any) -> str:
        """Waits for the end of a process; returns how it failed, if it did."""
        last, changed, used = reached.value, time.monotonic(), 0.0
        while process.is_alive():
            process.join(1)
            # Its end would wait for an empty queue otherwise.
            self._receive(reports)
            if reached.value != last:
                last, changed = reached.value, time.monotonic()
                used = cpu_seconds(process)
            is_looping = cpu_seconds(process) - used > HANG_CPU_SECONDS
            if is_looping or time.monotonic() - changed > HANG_SECONDS:
                process.kill()
                process.join()
                return "it loops for ever" if is_looping else "it waits for ever"
        self._receive(reports)
        return f"the process ended with {process.exitcode}" if process.exitcode else ""


def one_input(name: str, seed: str, number: int) -> list[Finding]:
    """Repeats a single input of a reader or an endpoint."""
    keys.COST = 4
    if name not in ENDPOINTS:
        finding = try_input(readers()[name], seed, number)
        return [finding] if finding else []
    with tempfile.TemporaryDirectory() as directory:
        numbers = range(number, number + 1)
        return asyncio.run(fuzz_round(name, Path(directory), seed, numbers, lambda _: None))[0]


def main() -> int:
    targets = [*readers(), *ENDPOINTS]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="for all targets together")
    parser.add_argument("--seed", default="", help="a new one by default")
    parser.add_argument("--target", action="append", choices=targets, help="default: all")
    parser.add_argument("--input", type=int, help="repeats this input of the target")
    options = parser.parse_args()
    if options.input is not None:
        findings = one_input(options.target[0], options.seed, options.input)
        print(*(findings or ["no finding"]), sep="\n")
        return bool(findings)
    campaign = Campaign(options.seed or str(time.time_ns() % 10**8))
    chosen = options.target or targets
    print(f"seed {campaign.seed}, {len(chosen)} targets, {options.seconds:.0f} s", flush=True)
    for name in chosen:
        campaign.run(name, options.seconds / len(chosen))
    print(f"{campaign.inputs} inputs, {len(campaign.findings)} findings")
    return bool(campaign.findings)


if __name__ == "__main__":
    sys.exit(main())
