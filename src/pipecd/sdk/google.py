# SPDX-License-Identifier: Apache-2.0
"""Google Cloud for plugins: access tokens of a service account or of the machine.

google-auth is imported at the first call, so that a piped without Google Cloud needs it not.
"""

import asyncio
import warnings
from typing import Any

from pipecd.model.errors import NoDriver


class GoogleCredentials:
    """The credentials in a file, or the default credentials without one."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._credentials: Any = None
        self._lock = asyncio.Lock()

    async def header(self) -> str:
        """Returns the `authorization` header, renewed before it expires."""
        async with self._lock:
            credentials = self._credentials
            if credentials is None or not credentials.valid:
                # Google's library reads files and blocks.
                credentials = await asyncio.to_thread(_renew, credentials, self._file)
                self._credentials = credentials
            return f"Bearer {credentials.token}"

    def invalidate(self) -> None:
        """Reads the file and requests a token at the next call, because this one was refused."""
        self._credentials = None


def _renew(credentials: Any, file: str) -> Any:
    try:
        with warnings.catch_warnings():
            # google-auth warns about an optional package that it needs only for gRPC.
            warnings.simplefilter("ignore", ImportWarning)
            from pipecd.wire.google_cloud import load_credentials, renew_token  # noqa: PLC0415
    except ModuleNotFoundError as e:
        raise NoDriver("Google Cloud", extra="cloudrun") from e
    credentials = credentials or load_credentials(file)
    renew_token(credentials)
    return credentials
