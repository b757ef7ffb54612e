# SPDX-License-Identifier: Apache-2.0
"""A client of one AWS service; needs boto3."""

import os
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    NoCredentialsError,
    NoRegionError,
    PartialCredentialsError,
)

from pipecd.model.errors import Denied, NotFound, PipecdError, Unavailable, UserMistake
from pipecd.wire.cloud import CloudRejection

# A thread cannot be cancelled, so every call needs timeouts.
_CONFIG = Config(connect_timeout=3, read_timeout=10, retries={"max_attempts": 3})
_MISSING = frozenset({"ResourceNotFoundException", "ParameterNotFound", "NotFoundException"})
_DENIED = frozenset(
    {
        "AccessDenied",
        "AccessDeniedException",
        "ExpiredTokenException",
        "InvalidClientTokenId",
        "InvalidSignatureException",
        "UnrecognizedClientException",
    }
)
_BUSY = frozenset({"ThrottlingException", "Throttling", "TooManyRequestsException"})


class AwsApi:
    """Calls operations of a service; maps errors of AWS to those of `pipecd.model.errors`."""

    def __init__(self, service: str, region: str) -> None:
        self._name = service
        try:
            session: Any = boto3.Session()
            # Every other AWS SDK reads this variable, and boto3 does not.
            region = region or os.environ.get("AWS_REGION", "")
            self._client = session.client(service, region_name=region or None, config=_CONFIG)
        except NoRegionError as e:
            raise UserMistake(
                "no AWS region is configured",
                hint="set AWS_REGION, or the region in the profile",
            ) from e
        except BotoCoreError as e:
            raise UserMistake(f"invalid AWS settings: {e}") from e

    def __call__(self, operation: str, *, about: str, **parameters: object) -> dict[str, Any]:
        try:
            return getattr(self._client, operation)(**parameters)
        except ClientError as e:
            raise _to_error(e, about) from e
        except (NoCredentialsError, PartialCredentialsError) as e:
            raise UserMistake(
                f"no AWS credentials to read {about}",
                hint="give the machine or pod a role, or set AWS_ACCESS_KEY_ID and its companions",
            ) from e
        except BotoCoreError as e:
            raise Unavailable(f"AWS did not respond to the request for {about}: {e}") from e


def _to_error(error: ClientError, about: str) -> PipecdError:
    response: Any = error.response
    code, reason = response["Error"].get("Code", ""), response["Error"].get("Message", "")
    if code in _MISSING:
        return NotFound(f"{about} does not exist", hint="check its name and the region")
    if code in _DENIED:
        return Denied(
            f"AWS denies access to {about}: {reason or code}",
            hint="check the credentials and the policies of their role",
        )
    if code in _BUSY or response["ResponseMetadata"]["HTTPStatusCode"] >= 500:
        return Unavailable(f"AWS is unavailable for {about}: {reason or code}")
    return CloudRejection(f"AWS rejected the request for {about}: {reason or code}", code=code)
