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

# Of each deploy target; they are started when they are needed.
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
class _Session:
    """A session of boto3 with a client for each service."""

    boto: Any
    clients: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass
class AwsAccount:
    """One deploy target; its clients are created once and serve calls of many threads.

    If AWS does not accept the credentials, they are read again: files with credentials are renewed
    while piped runs.
    """

    target: str
    settings: AwsTarget
    threads: ThreadPool
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _session: _Session | None = None

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
            lambda: self._request(
                service, about, lambda client: getattr(client, operation)(**parameters)
            )
        )

    async def collect(
        self, service: str, operation: str, key: str, /, *, about: str, **parameters: object
    ) -> list[Any]:
        """Returns the elements of `key` on all pages of an operation."""

        def read(client: Any) -> list[Any]:
            pages = client.get_paginator(operation).paginate(**parameters)
            return [element for page in pages for element in page.get(key, ())]

        return await self.threads.run(lambda: self._request(service, about, read))

    def _request(self, service: str, about: str, send: Callable[[Any], T]) -> T:
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415

        from pipecd.wire.aws import explain, is_of_credentials, static_credentials  # noqa: PLC0415

        try:
            used = self._current()
            try:
                return send(self._client(used, service))
            except (ClientError, BotoCoreError) as e:
                if not is_of_credentials(e):
                    raise
                renewed = self._renewed(used)
                if static_credentials(renewed.boto) == static_credentials(used.boto):
                    raise
                return send(self._client(renewed, service))
        except (ClientError, BotoCoreError) as e:
            raise explain(e, about) from e
        except OSError as e:
            raise UserMistake(
                f"the credentials of deploy target {self.target} cannot be read: {e}",
                hint="check credentialsFile and tokenFile of the deploy target",
            ) from e

    def _current(self) -> _Session:
        with self._lock:
            if self._session is None:
                self._session = self._open()
            return self._session

    def _renewed(self, used: _Session) -> _Session:
        """Returns a session that another thread has opened after `used`, or else a new one."""
        with self._lock:
            if self._session is used:
                self._session = None
        return self._current()

    def _open(self) -> _Session:
        from pipecd.wire.aws import AwsIdentity, create_session  # noqa: PLC0415

        settings = self.settings
        return _Session(
            create_session(
                AwsIdentity(
                    region=settings.region,
                    profile=settings.profile,
                    credentials_file=settings.credentials_file,
                    role_arn=settings.role_arn,
                    token_file=settings.token_file,
                )
            )
        )

    def _client(self, session: _Session, service: str) -> Any:
        from botocore.config import Config  # noqa: PLC0415

        with self._lock:
            if service not in session.clients:
                session.clients[service] = session.boto.client(
                    service,
                    endpoint_url=self.settings.endpoint or None,
                    config=Config(
                        connect_timeout=_CONNECT_SECONDS,
                        read_timeout=_READ_SECONDS,
                        retries={"total_max_attempts": _MAX_ATTEMPTS, "mode": "adaptive"},
                        max_pool_connections=_THREADS,
                    ),
                )
            return session.clients[service]


class AwsAccounts:
    """The deploy targets of a plugin.

    Each one has threads of its own: a region that does not answer keeps those of no other busy.
    """

    def __init__(self) -> None:
        self._threads: dict[str, ThreadPool] = {}
        self._accounts: dict[str, AwsAccount] = {}

    def account(self, target: str, settings: AwsTarget) -> AwsAccount:
        """Returns the account of a deploy target by its name."""
        known = self._accounts.get(target)
        if known is None or known.settings != settings:
            if find_spec("boto3") is None:
                raise NoDriver("AWS", extra="aws")
            if target not in self._threads:
                self._threads[target] = ThreadPool(f"aws-{target}", threads=_THREADS)
            known = self._accounts[target] = AwsAccount(target, settings, self._threads[target])
        return known

    async def close(self) -> None:
        """Waits for the calls that are running."""
        for threads in self._threads.values():
            await threads.close()
