# SPDX-License-Identifier: Apache-2.0
"""AWS for plugins: the settings of a deploy target, calls that do not block, waits, and tags.

boto3 is imported at the first call, so that a piped without AWS needs neither it nor its memory.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Annotated, Any, TypeVar

from pydantic import Field

from pipecd.config.spec import Spec, must_be_set
from pipecd.model.errors import Denied, NoDriver, UserMistake
from pipecd.program.threads import ThreadPool
from pipecd.sdk.ownership import (
    APPLICATION_TAG,
    COMMIT_TAG,
    MANAGED_BY_TAG,
    PIPED_TAG,
    ownership_tags,
)
from pipecd.sdk.polling import Polling
from pipecd.wire.cloud import CloudMissing, CloudRejection

__all__ = [
    "APPLICATION_TAG",
    "COMMIT_TAG",
    "MANAGED_BY_TAG",
    "PIPED_TAG",
    "AwsAccount",
    "AwsAccounts",
    "AwsDenied",
    "AwsMissing",
    "AwsRejection",
    "AwsTarget",
    "Polling",
    "ownership_tags",
]

T = TypeVar("T")

AwsDenied = Denied
"""AWS does not permit a request, or does not accept the credentials."""
AwsMissing = CloudMissing
"""AWS does not know a resource; `code` is its error code."""
AwsRejection = CloudRejection
"""AWS refused a request that was permitted; `code` is its error code."""

_THREADS = 16
# A thread cannot be cancelled, so every call has a timeout.
_CONNECT_SECONDS, _READ_SECONDS, _MAX_ATTEMPTS = 5, 15, 5


class AwsTarget(Spec):
    """An AWS account and region; without credentials the default chain of AWS is used.

    `endpoint` is the address of every service, for private endpoints and for other
    implementations; without it AWS_ENDPOINT_URL and the profile decide, as in all tools of AWS.
    """

    region: Annotated[str, Field(validate_default=True), must_be_set("region")] = ""
    profile: str = ""
    credentials_file: str = ""
    role_arn: Annotated[str, Field(alias="roleARN")] = ""
    token_file: str = ""
    endpoint: str = ""


@dataclass
class AwsAccount:
    """One deploy target; its clients are created once and serve calls of many threads."""

    target: str
    settings: AwsTarget
    threads: ThreadPool
    _clients: dict[str, Any] = field(default_factory=dict[str, Any])
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _session: Any = None

    @property
    def region(self) -> str:
        """The region of the deploy target."""
        return self.settings.region

    async def call(
        self, service: str, operation: str, /, *, about: str, **parameters: object
    ) -> dict[str, Any]:
        """Calls an operation of a service; `about` names the resource in errors.

        A caller that is cancelled still waits for the answer, because the request may be carried
        out nevertheless.
        """
        return await self.threads.run(
            lambda: self._explained(
                about, lambda: getattr(self._client(service), operation)(**parameters)
            )
        )

    async def collect(
        self, service: str, operation: str, key: str, /, *, about: str, **parameters: object
    ) -> list[Any]:
        """Returns the elements of `key` on all pages of an operation."""

        def read() -> list[Any]:
            pages = self._client(service).get_paginator(operation).paginate(**parameters)
            return [element for page in pages for element in page.get(key, ())]

        return await self.threads.run(lambda: self._explained(about, read))

    def _explained(self, about: str, call: Callable[[], T]) -> T:
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415

        from pipecd.wire.aws import explain  # noqa: PLC0415

        try:
            return call()
        except (ClientError, BotoCoreError) as e:
            raise explain(e, about) from e
        except OSError as e:
            raise UserMistake(
                f"the credentials of deploy target {self.target} cannot be read: {e}",
                hint="check credentialsFile and tokenFile of the deploy target",
            ) from e

    def _client(self, service: str) -> Any:
        with self._lock:
            if service not in self._clients:
                self._clients[service] = self._create_client(service)
            return self._clients[service]

    def _create_client(self, service: str) -> Any:
        from botocore.config import Config  # noqa: PLC0415

        from pipecd.wire.aws import AwsIdentity, create_session  # noqa: PLC0415

        settings = self.settings
        if self._session is None:
            self._session = create_session(
                AwsIdentity(
                    region=settings.region,
                    profile=settings.profile,
                    credentials_file=settings.credentials_file,
                    role_arn=settings.role_arn,
                    token_file=settings.token_file,
                )
            )
        return self._session.client(
            service,
            endpoint_url=settings.endpoint or None,
            config=Config(
                connect_timeout=_CONNECT_SECONDS,
                read_timeout=_READ_SECONDS,
                retries={"total_max_attempts": _MAX_ATTEMPTS, "mode": "adaptive"},
                max_pool_connections=_THREADS,
            ),
        )


class AwsAccounts:
    """The deploy targets of a plugin and the threads of their calls."""

    def __init__(self) -> None:
        self._threads = ThreadPool("aws", threads=_THREADS)
        self._accounts: dict[str, AwsAccount] = {}

    def account(self, target: str, settings: AwsTarget) -> AwsAccount:
        """Returns the account of a deploy target by its name."""
        known = self._accounts.get(target)
        if known is None or known.settings != settings:
            if find_spec("boto3") is None:
                raise NoDriver("AWS", extra="aws")
            known = self._accounts[target] = AwsAccount(target, settings, self._threads)
        return known

    async def close(self) -> None:
        """Waits for the calls that are running."""
        await self._threads.close()
