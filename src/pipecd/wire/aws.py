# SPDX-License-Identifier: Apache-2.0
"""Sessions and clients of AWS, and what its errors mean; needs boto3."""

import os
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import boto3
import botocore.session
from botocore.config import Config
from botocore.credentials import (
    AssumeRoleWithWebIdentityCredentialFetcher,
    Credentials,
    DeferredRefreshableCredentials,
)
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConfigNotFound,
    ConfigParseError,
    InvalidRegionError,
    NoCredentialsError,
    NoRegionError,
    ParamValidationError,
    PartialCredentialsError,
    ProfileNotFound,
    TokenRetrievalError,
    UnauthorizedSSOTokenError,
)
from botocore.utils import FileWebIdentityTokenLoader

from pipecd.model.errors import Denied, PipecdError, Unavailable, UserMistake
from pipecd.wire.cloud import CloudMissing, CloudRejection

# A thread cannot be cancelled, so every call needs timeouts.
_CONFIG = Config(connect_timeout=3, read_timeout=10, retries={"max_attempts": 3})
_MISSING_SUFFIXES = ("NotFound", "NotFoundException")
_RENEW = "renew the credentials that this process uses, or give it a role that renews them itself"
# The beginning of the message, the codes, and the remedy.
_DENIALS = (
    (
        "AWS denies access to",
        frozenset({"AccessDenied", "AccessDeniedException", "UnauthorizedOperation"}),
        "check the credentials and the policies of their role",
    ),
    (
        "the AWS credentials have expired, so there is no access to",
        frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired"}),
        _RENEW,
    ),
    (
        "AWS does not accept the credentials for",
        frozenset(
            {
                "AuthFailure",
                "IncompleteSignature",
                "InvalidAccessKeyId",
                "InvalidClientTokenId",
                "InvalidIdentityToken",
                "InvalidSignatureException",
                "SignatureDoesNotMatch",
                "UnrecognizedClientException",
            }
        ),
        _RENEW,
    ),
)
_THROTTLED = frozenset(
    {
        "RequestLimitExceeded",
        "Throttling",
        "ThrottlingException",
        "ThrottledException",
        "TooManyRequestsException",
    }
)
_UNUSABLE_SETTINGS = (ConfigNotFound, ConfigParseError, InvalidRegionError, ProfileNotFound)
_NO_CREDENTIALS = (
    NoCredentialsError,
    PartialCredentialsError,
    TokenRetrievalError,
    UnauthorizedSSOTokenError,
)


@dataclass(frozen=True)
class AwsIdentity:
    """A region and its credentials; without settings those of the default chain of AWS."""

    region: str
    profile: str = ""
    credentials_file: str = ""
    role_arn: str = ""
    token_file: str = ""


def create_session(identity: AwsIdentity) -> Any:
    """Returns a session of boto3; raises BotoCoreError if the settings cannot be used."""
    core: Any = cast("Any", botocore.session).Session()
    if identity.credentials_file:
        core.set_config_variable("credentials_file", identity.credentials_file)
    if identity.profile:
        core.set_config_variable("profile", identity.profile)
    if identity.role_arn and identity.token_file:
        fetcher = cast("Any", AssumeRoleWithWebIdentityCredentialFetcher)(
            client_creator=partial(core.create_client, region_name=identity.region),
            web_identity_token_loader=FileWebIdentityTokenLoader(identity.token_file),
            role_arn=identity.role_arn,
        )
        core._credentials = cast("Any", DeferredRefreshableCredentials)(
            method="assume-role-with-web-identity", refresh_using=fetcher.fetch_credentials
        )
    return boto3.Session(botocore_session=core, region_name=identity.region)


def static_credentials(session: Any) -> tuple[str, str, str] | None:
    """Returns the credentials of a session; None without any, or if botocore renews them."""
    try:
        found: Any = session.get_credentials()
    except BotoCoreError:
        return None
    # Credentials of subclasses are renewed.
    if found.__class__ is not Credentials:
        return None
    return found.access_key, found.secret_key, found.token or ""


def is_of_credentials(error: ClientError | BotoCoreError) -> bool:
    """Reports whether other credentials or settings would help."""
    if isinstance(error, ClientError):
        code: str = cast("Any", error.response)["Error"].get("Code", "")
        return any(code in codes for _, codes, hint in _DENIALS if hint == _RENEW)
    return isinstance(error, (*_NO_CREDENTIALS, *_UNUSABLE_SETTINGS))


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
        except (ClientError, BotoCoreError) as e:
            raise explain(e, about) from e


def explain(error: ClientError | BotoCoreError, about: str) -> PipecdError:
    """Returns what an error of AWS means; `about` names the resource of the request."""
    if isinstance(error, ClientError):
        return _explain_response(error, about)
    if isinstance(error, _NO_CREDENTIALS):
        return UserMistake(
            f"no AWS credentials to read {about}: {error}",
            hint="give the machine or pod a role, or set AWS_ACCESS_KEY_ID and its companions",
        )
    if isinstance(error, _UNUSABLE_SETTINGS):
        return UserMistake(
            f"the AWS settings cannot be used for {about}: {error}",
            hint="check the region, the profile and the credentials file",
        )
    if isinstance(error, ParamValidationError):
        return CloudRejection(
            f"AWS does not know such parameters of {about}: {error}", code="ParamValidation"
        )
    return Unavailable(
        f"AWS did not respond to the request for {about}: {error}",
        hint="check the network of this machine, the region and the endpoint",
    )


def _explain_response(error: ClientError, about: str) -> PipecdError:
    response: Any = error.response
    code, reason = response["Error"].get("Code", ""), response["Error"].get("Message", "")
    said = reason or code
    for beginning, codes, hint in _DENIALS:
        if code in codes:
            return Denied(f"{beginning} {about}: {said}", hint=hint)
    if code in _THROTTLED:
        return Unavailable(
            f"AWS throttles the requests for {about}: {said}",
            hint="try again later, or ask AWS for a higher request rate",
        )
    if code.endswith(_MISSING_SUFFIXES):
        return CloudMissing(
            f"{about} does not exist", code=code, hint="check its name and the region"
        )
    if response["ResponseMetadata"]["HTTPStatusCode"] >= 500:
        return Unavailable(f"AWS is unavailable for {about}: {said}", hint="try again later")
    return CloudRejection(f"AWS rejected the request for {about}: {said}", code=code)
