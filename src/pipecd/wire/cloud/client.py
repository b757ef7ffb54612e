# SPDX-License-Identifier: Apache-2.0
"""Opens clients of clouds, whose drivers are installed by those who use them."""

import warnings
from typing import Any, Protocol

from pipecd.model.errors import NoDriver


class AwsCall(Protocol):
    """Asks one service of AWS; `about` names what is asked for in errors."""

    def __call__(self, operation: str, *, about: str, **parameters: object) -> dict[str, Any]: ...


class GoogleCall(Protocol):
    """Asks one API of Google with a GET, or with a POST if there is a body."""

    def __call__(
        self, path: str, *, about: str, body: dict[str, Any] | None = None
    ) -> dict[str, Any]: ...


def open_aws(service: str, *, region: str = "") -> AwsCall:
    """A client with the credentials and the region that AWS's own tools would take."""
    try:
        from pipecd.wire.cloud.aws import AwsApi  # noqa: PLC0415
    except ModuleNotFoundError as e:
        raise NoDriver("AWS", extra="aws") from e
    return AwsApi(service, region)


def open_google(service: str, *, credentials_file: str = "") -> GoogleCall:
    """A client with the given service account, or with the application default credentials."""
    try:
        with warnings.catch_warnings():
            # The driver asks for a package that would only help it with gRPC.
            warnings.simplefilter("ignore", ImportWarning)
            from pipecd.wire.cloud.google import GoogleApi  # noqa: PLC0415
    except ModuleNotFoundError as e:
        raise NoDriver("Google Cloud", extra="gcp") from e
    return GoogleApi(service, credentials_file)
