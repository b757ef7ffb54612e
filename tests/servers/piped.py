# SPDX-License-Identifier: Apache-2.0
"""`piped run` as a process, and its configuration file."""

import asyncio
import base64
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from servers.programs import OUR_PIPED


def piped_config(
    id_: str, key: str | Path, *, address: str, remote: str, project: str = "shop", rest: str = ""
) -> str:
    """Returns the configuration of a piped with one repository; `rest` is appended to its spec.

    A key that is a path is named as the file of the key.
    """
    is_file = isinstance(key, Path)
    line = f"File: {key}" if is_file else f"Data: {base64.b64encode(key.encode()).decode()}"
    return f"""\
apiVersion: pipecd.dev/v1beta1
kind: Piped
spec:
  projectID: {project}
  pipedID: {id_}
  pipedKey{line}
  apiAddress: {address}
  repositories: [{{repoID: site, remote: "{remote}", branch: main}}]
{rest}"""


def piped_arguments(config: Path, *flags: str) -> list[str]:
    """Returns the arguments of a piped whose directories are beside its configuration."""
    directories = [f"--{what}-dir={config.parent / what}" for what in ("tools", "workspace")]
    return ["run", "--insecure", "--admin-port=0", f"--config-file={config}", *directories, *flags]


@asynccontextmanager
async def started_piped(
    config: Path, *flags: str
) -> AsyncGenerator[asyncio.subprocess.Process, None]:
    """Runs a piped that may end within the block; it is killed at its end if it still runs."""
    process = await asyncio.create_subprocess_exec(OUR_PIPED, *piped_arguments(config, *flags))
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@asynccontextmanager
async def killed_piped(
    config: Path, *flags: str
) -> AsyncGenerator[asyncio.subprocess.Process, None]:
    """Runs a piped that is killed without warning at the end of the block, and not before."""
    async with started_piped(config, *flags) as process:
        yield process
        assert process.returncode is None, f"piped ended by itself with {process.returncode}"
