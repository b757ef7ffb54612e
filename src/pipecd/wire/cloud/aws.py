# SPDX-License-Identifier: Apache-2.0
"""One service of AWS; needs boto3."""

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
from pipecd.wire.cloud.refusal import Refusal

# A thread cannot be told to stop, so that every call must end by itself.
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
    """Asks a service and tells its errors by who must act."""

    def __init__(self, service: str, region: str) -> None:
        self._name = service
        try:
            session: Any = boto3.Session()
            # Every other SDK knows this variable, and boto3 does not.
            region = region or os.environ.get("AWS_REGION", "")
            self._client = session.client(service, region_name=region or None, config=_CONFIG)
        except NoRegionError as e:
            raise UserMistake(
                "it is not known which region of AWS to ask",
                hint="set AWS_REGION, or the region in the profile",
            ) from e
        except BotoCoreError as e:
            raise UserMistake(f"the settings for AWS cannot be used: {e}") from e

    def __call__(self, operation: str, *, about: str, **parameters: object) -> dict[str, Any]:
        try:
            return getattr(self._client, operation)(**parameters)
        except ClientError as e:
            raise _told(e, about) from e
        except (NoCredentialsError, PartialCredentialsError) as e:
            raise UserMistake(
                f"there are no credentials to ask AWS for {about}",
                hint="give the machine or pod a role, or set AWS_ACCESS_KEY_ID and its companions",
            ) from e
        except BotoCoreError as e:
            raise Unavailable(f"AWS did not answer about {about}: {e}") from e


def _told(error: ClientError, about: str) -> PipecdError:
    answer: Any = error.response
    code, why = answer["Error"].get("Code", ""), answer["Error"].get("Message", "")
    if code in _MISSING:
        return NotFound(f"{about} does not exist", hint="check its name and the region")
    if code in _DENIED:
        return Denied(
            f"AWS does not allow the use of {about}: {why or code}",
            hint="check the credentials and the policies of their role",
        )
    if code in _BUSY or answer["ResponseMetadata"]["HTTPStatusCode"] >= 500:
        return Unavailable(f"AWS cannot answer about {about} now: {why or code}")
    return Refusal(f"AWS refused {about}: {why or code}", code=code)
