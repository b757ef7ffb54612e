# SPDX-License-Identifier: Apache-2.0
"""`piped run` as a process, and its configuration file."""

import asyncio
import base64
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from servers.programs import OUR_PIPED


def piped_config(
    id_: str, key: str, *, address: str, remote: str, project: str = "shop", rest: str = ""
) -> str:
    """Returns the configuration of a piped with one repository; `rest` is appended to its spec."""
    return f"""\
apiVersion: pipecd.dev/v1beta1
kind: Piped
spec:
  projectID: {project}
  pipedID: {id_}
  pipedKeyData: {base64.b64encode(key.encode()).decode()}
  apiAddress: {address}
  repositories: [{{repoID: site, remote: "{remote}", branch: main}}]
{rest}"""


def piped_arguments(config: Path, *flags: str) -> list[str]:
    """Returns the arguments of a piped whose directories are beside its configuration."""
    directories = [f"--{what}-dir={config.parent / what}" for what in ("tools", "workspace")]
    return ["run", "--insecure", "--admin-port=0", f"--config-file={config}", *directories, *flags]


@asynccontextmanager
async def killed_piped(
    config: Path, *flags: str
) -> AsyncGenerator[asyncio.subprocess.Process, None]:
    """Runs a piped that is killed without warning at the end of the block."""
    process = await asyncio.create_subprocess_exec(OUR_PIPED, *piped_arguments(config, *flags))
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
