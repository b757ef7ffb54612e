# SPDX-License-Identifier: Apache-2.0
"""Clients of AWS and Google Cloud; their libraries are optional extras."""

import warnings
from typing import Any, Protocol

from pipecd.model.errors import NoDriver, NotFound, UserMistake


class CloudMissing(NotFound):
    """The cloud does not know a resource of the request; `code` is its error code."""

    def __init__(self, message: str, *, code: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.code = code


class CloudRejection(UserMistake):
    """The cloud rejected a valid request; `code` is its error code."""

    def __init__(self, message: str, *, code: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.code = code


class AwsCall(Protocol):
    """Calls an operation of one AWS service; `about` names the resource in errors."""

    def __call__(self, operation: str, *, about: str, **parameters: object) -> dict[str, Any]: ...


class GoogleCall(Protocol):
    """Calls one Google API with GET, or with POST if there is a body."""

    def __call__(
        self, path: str, *, about: str, body: dict[str, Any] | None = None
    ) -> dict[str, Any]: ...


def open_aws(service: str, *, region: str = "") -> AwsCall:
    """Returns a client with the default credentials and region of the AWS SDKs."""
    try:
        from pipecd.wire.aws import AwsApi  # noqa: PLC0415
    except ModuleNotFoundError as e:
        raise NoDriver("AWS", extra="aws") from e
    return AwsApi(service, region)


def open_google(service: str, *, credentials_file: str = "") -> GoogleCall:
    """Returns a client with a service account, or with application default credentials."""
    try:
        with warnings.catch_warnings():
            # google-auth warns about an optional package that it needs only for gRPC.
            warnings.simplefilter("ignore", ImportWarning)
            from pipecd.wire.google_cloud import GoogleApi  # noqa: PLC0415
    except ModuleNotFoundError as e:
        raise NoDriver("Google Cloud", extra="gcp") from e
    return GoogleApi(service, credentials_file)
