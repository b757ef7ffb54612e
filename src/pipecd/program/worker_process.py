# SPDX-License-Identifier: Apache-2.0
"""The process of a worker of `pipecd.program.workers`: evaluates one call after the other.

Requests and replies are JSON with a length before it. The process limits its own memory and CPU
time, and ends with its parent, also in the middle of a call.
"""

import json
import os
import resource
import struct
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any

from pipecd.model.errors import PipecdError

LENGTH = struct.Struct(">Q")
"""The length before a request or a reply."""

# The reader only waits for requests.
_READER_STACK = 256 * 1024
# The parent measures the time of a call; this limit holds when there is no parent any more.
_EXTRA_CPU_SECONDS = 2


def main(seconds: float, memory: int, output: int) -> None:
    """Serves calls until standard input ends."""
    requests, replies = _take_standard_streams()
    _limit_memory(memory)
    calls: SimpleQueue[bytes] = SimpleQueue()
    threading.stack_size(_READER_STACK)
    threading.Thread(target=_read, args=(requests, calls), daemon=True).start()
    _write(replies, b"")
    while True:
        request = calls.get()
        _limit_cpu(seconds)
        reply = json.dumps(_evaluate(request)).encode()
        if len(reply) > output:
            reply = json.dumps({"exceeded": "output"}).encode()
        _write(replies, reply)


def _take_standard_streams() -> tuple[IO[bytes], IO[bytes]]:
    """Returns standard input and output, and leaves empty ones to the functions that are called."""
    streams = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1):
        os.dup2(nothing, standard)
    return streams


def _limit_memory(memory: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    try:
        # When the machine runs out of memory, this process is ended first.
        Path("/proc/self/oom_score_adj").write_text("1000")
    except OSError:
        # Only Linux has this.
        return


def _limit_cpu(seconds: float) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit = int(used.ru_utime + used.ru_stime + seconds) + _EXTRA_CPU_SECONDS
    resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))


def _read(requests: IO[bytes], calls: SimpleQueue[bytes]) -> None:
    while len(head := requests.read(LENGTH.size)) == LENGTH.size:
        calls.put(requests.read(*LENGTH.unpack(head)))
    # The parent closed the pipe or died.
    os._exit(0)


def _write(replies: IO[bytes], reply: bytes) -> None:
    replies.write(LENGTH.pack(len(reply)) + reply)
    replies.flush()


def _evaluate(request: bytes) -> dict[str, Any]:
    try:
        module, name, arguments = json.loads(request)
        function: Callable[..., Any] = getattr(import_module(module), name)
        return {"value": function(*arguments)}
    except PipecdError as e:
        return {"mistake": [e.message, e.hint]}
    except MemoryError:
        return {"exceeded": "memory"}
    except RecursionError:
        return {"exceeded": "depth"}
    except Exception as e:  # noqa: BLE001
        # The message may contain the arguments, and those may contain secrets.
        return {"failure": type(e).__name__, "where": _where(e)}


def _where(error: Exception) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace is not None else ""


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
