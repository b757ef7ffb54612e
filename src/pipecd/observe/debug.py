# SPDX-License-Identifier: Apache-2.0
"""Profiles of a running process for `go tool pprof` and its relatives, and the same as text.

They contain names of functions, files and types and line numbers, never values.
"""

import asyncio
import gc
import gzip
import resource
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Mapping
from types import FrameType
from typing import NamedTuple

_SECONDS = 5.0
_SAMPLING_INTERVAL = 0.01
_MAX_DEPTH = 64
_MAX_TYPES = 40


class _Frame(NamedTuple):
    """A line of a stack."""

    function: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.function}:{self.line}"


_Stack = tuple[_Frame, ...]
"""The frames of a stack, the innermost first."""


def index() -> bytes:
    """Lists the profiles."""
    return b"""\
/debug/pprof/profile    wall-clock profile of all threads over 5 seconds (pprof format)
/debug/pprof/goroutine  stacks of all asyncio tasks and threads (pprof format)
/debug/pprof/heap       number of objects by type (pprof format)
/debug/tasks            stacks of all asyncio tasks and threads, as text
/debug/objects          memory, and number of objects by type, as text
/debug/loop             delays of the event loop over 5 seconds, as text
"""


async def profile() -> bytes:
    """Samples the stacks of all threads for a while."""
    started = time.time_ns()
    samples = await asyncio.to_thread(_sample_threads, _SECONDS)
    return encode_profile(
        samples,
        sample_type=("samples", "count"),
        period=("wall", "nanoseconds", int(_SAMPLING_INTERVAL * 1e9)),
        time_nanos=started,
        duration_nanos=int(_SECONDS * 1e9),
    )


def goroutines() -> bytes:
    """Returns the stacks of all tasks and threads, the counterparts of goroutines."""
    stacks = Counter(_stack_of_task(task) for task in asyncio.all_tasks())
    stacks.update(_walk(frame) for frame in sys._current_frames().values())
    return encode_profile(stacks, sample_type=("goroutine", "count"))


def heap() -> bytes:
    """Returns how many objects of each type the garbage collector tracks."""
    stacks = {(_Frame(name, "", 0),): count for name, count in _objects().items()}
    return encode_profile(stacks, sample_type=("inuse_objects", "count"))


def tasks_text() -> bytes:
    """Returns the stack of every task and every thread as text."""
    lines: list[str] = []
    tasks = sorted(asyncio.all_tasks(), key=lambda task: task.get_name())
    for task in tasks:
        lines.append(f"task {task.get_name()}")
        lines += [f"  {frame}" for frame in _stack_of_task(task)]
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        lines.append(f"thread {names.get(ident, ident)}")
        lines += [f"  {one}" for one in _walk(frame)]
    head = f"{len(tasks)} tasks, {threading.active_count()} threads"
    return "\n".join([head, *lines, ""]).encode()


def objects_text() -> bytes:
    """Returns the peak of memory and the most frequent types of objects as text."""
    objects = _objects()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    lines = [
        f"peak resident memory: {peak} KiB",
        f"tracked objects: {objects.total()}",
        *(f"{count:>9} {name}" for name, count in objects.most_common(_MAX_TYPES)),
        "",
    ]
    return "\n".join(lines).encode()


async def loop_text() -> bytes:
    """Returns percentiles of how late the event loop wakes a sleeping task, as text."""
    loop = asyncio.get_running_loop()
    ends, delays = loop.time() + _SECONDS, list[float]()
    while (now := loop.time()) < ends:
        await asyncio.sleep(_SAMPLING_INTERVAL)
        delays.append(max(loop.time() - now - _SAMPLING_INTERVAL, 0) * 1000)
    delays.sort()
    lines = [
        f"p{part}: {delays[min(int(len(delays) * part / 100), len(delays) - 1)]:.2f} ms"
        for part in (50, 90, 99)
    ]
    return "\n".join([*lines, f"max: {delays[-1]:.2f} ms", ""]).encode()


def encode_profile(
    samples: Mapping[_Stack, int],
    *,
    sample_type: tuple[str, str],
    period: tuple[str, str, int] | None = None,
    time_nanos: int = 0,
    duration_nanos: int = 0,
) -> bytes:
    """Encodes samples as gzipped `perftools.profiles.Profile` (profile.proto of pprof)."""
    strings: dict[str, int] = {"": 0}
    functions: dict[tuple[str, str], int] = {}
    locations: dict[_Frame, int] = {}

    def text(value: str) -> int:
        return strings.setdefault(value, len(strings))

    parts = [_message(1, _value_type(text(sample_type[0]), text(sample_type[1])))]
    for stack, count in samples.items():
        ids = b"".join(_varint(locations.setdefault(frame, len(locations) + 1)) for frame in stack)
        parts.append(_message(2, _message(1, ids) + _message(2, _varint(count))))
    for frame, id in locations.items():
        function = functions.setdefault((frame.function, frame.file), len(functions) + 1)
        line = _number(1, function) + _number(2, frame.line)
        parts.append(_message(4, _number(1, id) + _message(4, line)))
    for (name, file), id in functions.items():
        fields = ((1, id), (2, text(name)), (3, text(name)), (4, text(file)))
        parts.append(_message(5, b"".join(_number(*field) for field in fields)))
    if period is not None:
        parts += [
            _message(11, _value_type(text(period[0]), text(period[1]))),
            _number(12, period[2]),
        ]
    parts += [_number(9, time_nanos), _number(10, duration_nanos)]
    parts += [_message(6, value.encode()) for value in strings]
    return gzip.compress(b"".join(parts))


def _value_type(type: int, unit: int) -> bytes:
    return _number(1, type) + _number(2, unit)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _message(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _sample_threads(seconds: float) -> Counter[_Stack]:
    own, ends = threading.get_ident(), time.monotonic() + seconds
    samples: Counter[_Stack] = Counter()
    while time.monotonic() < ends:
        for ident, frame in sys._current_frames().items():
            if ident != own:
                samples[_walk(frame)] += 1
        time.sleep(_SAMPLING_INTERVAL)
    return samples


def _objects() -> Counter[str]:
    return Counter(f"{type(one).__module__}.{type(one).__qualname__}" for one in gc.get_objects())


def _stack_of_task(task: asyncio.Task[object]) -> _Stack:
    return tuple(_frame(frame) for frame in reversed(task.get_stack(limit=_MAX_DEPTH)))


def _walk(frame: FrameType) -> _Stack:
    return tuple(_frame(inner) for inner, _ in traceback.walk_stack(frame))[:_MAX_DEPTH]


def _frame(frame: FrameType) -> _Frame:
    code = frame.f_code
    name = f"{frame.f_globals.get('__name__', '?')}.{code.co_qualname}"
    return _Frame(name, code.co_filename, frame.f_lineno or 0)
