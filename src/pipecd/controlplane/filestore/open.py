# SPDX-License-Identifier: Apache-2.0
"""The one place where the kind of filestore is chosen."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from pipecd.config.controlplane.storage import FilestoreSpec
from pipecd.controlplane.filestore.local import LocalFiles
from pipecd.controlplane.stores.files import Files
from pipecd.model.errors import UserMistake


@asynccontextmanager
async def open_filestore(spec: FilestoreSpec) -> AsyncIterator[Files]:
    """The filestore of the configuration; closed at the end of the context."""
    match spec.type:
        case "LOCAL":
            yield await LocalFiles.open(Path(spec.config.path))
        case _:
            raise UserMistake(f"filestore type {spec.type!r} is not built in yet", hint="use LOCAL")
