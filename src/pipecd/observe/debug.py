# SPDX-License-Identifier: Apache-2.0
"""What a process is doing and what it holds, at the paths where operators look for it.

Names of functions, lines and types are shown, never values.
"""

import asyncio
import gc
import resource
import sys
import threading
import time
import traceback
from collections import Counter
from types import FrameType

_SECONDS = 5.0
_EVERY = 0.01
_DEEPEST = 64
_MOST_TYPES = 40


def index() -> bytes:
    """What there is to look at."""
    return b"""\
/debug/pprof/goroutine  every task and every thread, and where it stands
/debug/pprof/heap       how much memory is used, and of which objects there are most
/debug/pprof/profile    where the time goes: 5 seconds of samples, as folded stacks
/debug/pprof/trace      how late the event loop was during 5 seconds
"""


def stacks() -> bytes:
    """Where every task and every thread stands; the counterpart of a dump of goroutines."""
    lines: list[str] = []
    tasks = sorted(asyncio.all_tasks(), key=lambda task: task.get_name())
    for task in tasks:
        lines.append(f"task {task.get_name()}")
        lines += [f"  {_line(frame)}" for frame in task.get_stack(limit=_DEEPEST)]
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        lines.append(f"thread {names.get(ident, ident)}")
        lines += [f"  {one}" for one in _walk(frame)]
    head = f"{len(tasks)} tasks, {threading.active_count()} threads"
    return "\n".join([head, *lines, ""]).encode()


def memory() -> bytes:
    """What the process holds."""
    objects = gc.get_objects()
    kinds = Counter(f"{type(one).__module__}.{type(one).__qualname__}" for one in objects)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    lines = [
        f"peak resident memory: {peak} KiB",
        f"tracked objects: {len(objects)}",
        *(f"{count:>9} {name}" for name, count in kinds.most_common(_MOST_TYPES)),
        "",
    ]
    return "\n".join(lines).encode()


async def profile() -> bytes:
    """Samples of all threads, one stack a line with how often it was seen, for flame graphs."""
    seen = await asyncio.to_thread(_sample, _SECONDS)
    lines = [f"{stack} {count}" for stack, count in seen.most_common()]
    return "\n".join([*lines, ""]).encode()


async def lateness() -> bytes:
    """How much later than asked for the event loop came back."""
    loop = asyncio.get_running_loop()
    ends, late = loop.time() + _SECONDS, list[float]()
    while (now := loop.time()) < ends:
        await asyncio.sleep(_EVERY)
        late.append(max(loop.time() - now - _EVERY, 0) * 1000)
    late.sort()
    rows = [(part, late[min(int(len(late) * part / 100), len(late) - 1)]) for part in (50, 90, 99)]
    lines = [f"p{part}: {value:.2f} ms" for part, value in rows]
    return "\n".join([*lines, f"max: {late[-1]:.2f} ms", ""]).encode()


def _sample(seconds: float) -> Counter[str]:
    me, ends = threading.get_ident(), time.monotonic() + seconds
    seen: Counter[str] = Counter()
    while time.monotonic() < ends:
        for ident, frame in sys._current_frames().items():
            if ident != me:
                seen[";".join(reversed(_walk(frame)))] += 1
        time.sleep(_EVERY)
    return seen


def _walk(frame: FrameType) -> list[str]:
    """The lines of a stack, the innermost first."""
    return [_line(inner) for inner, _ in traceback.walk_stack(frame)][:_DEEPEST]


def _line(frame: FrameType) -> str:
    code = frame.f_code
    return f"{frame.f_globals.get('__name__', '?')}.{code.co_qualname}:{frame.f_lineno}"
