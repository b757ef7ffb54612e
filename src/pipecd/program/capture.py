# SPDX-License-Identifier: Apache-2.0
"""Run a program whose output is data: bytes of standard output apart from the messages."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipecd.model.errors import Unavailable
from pipecd.program import group


@dataclass(frozen=True)
class Captured:
    """What a program answered."""

    code: int
    stdout: bytes
    stderr: bytes


async def capture(
    argv: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    stdin: bytes = b"",
    at_most: float = 60,
) -> Captured:
    """Runs a program to its end and returns everything it wrote; too slow a one is ended."""
    pipe = asyncio.subprocess.PIPE
    process = await group.start(argv, cwd=cwd, env=env, stdin=pipe, stdout=pipe, stderr=pipe)
    try:
        async with asyncio.timeout(at_most):
            stdout, stderr = await process.communicate(stdin)
    except TimeoutError as e:
        await group.end(process, grace=1)
        raise Unavailable(f"{argv[0]} did not finish within {at_most:g}s") from e
    except BaseException:
        await group.end(process, grace=1)
        raise
    # `communicate` only returns once the program has ended.
    code = process.returncode if process.returncode is not None else await process.wait()
    return Captured(code, stdout, stderr)
