# SPDX-License-Identifier: Apache-2.0
"""Checks at the start that the encryption key is the one that the database was used with.

The database remembers digests of the key. A start with another key is refused, because going on
would sign out every user, and what is saved meanwhile could not be read with the right key. A
database without digests, such as one that upstream has written, is opened in any case: whether
its key is the right one can only be seen by secrets that do not decrypt, and a key that was
replaced long ago has left such secrets, too.
"""

import hmac
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256

import structlog

from pipecd.controlplane.datastore.stores import Stores
from pipecd.model.errors import UserMistake
from pipecd.proto.model.project_pb2 import Project
from pipecd.secrets.keyfile import KEY_BYTES, KeyFile, is_sealed

log = structlog.get_logger()

_SIGN_IN_AGAIN = "all users have to sign in again"
_ENTER_AGAIN = (
    "start with the file that was used when they were saved, or enter them again in the settings "
    "of their project"
)
_REPLACED_HINT = (
    "start with the file that was used before; if the key has been replaced on purpose, start "
    "once with --new-encryption-key and enter the secrets again"
)


@dataclass(frozen=True)
class KeyDigests:
    """Digests of what encrypts secrets, the first bytes of the file, and of the whole file."""

    secrets: str
    sessions: str

    @classmethod
    def of(cls, key: bytes) -> "KeyDigests":
        return cls(_digest(key[:KEY_BYTES]), _digest(key))

    @classmethod
    def parse(cls, record: str) -> "KeyDigests":
        secrets, _, sessions = record.partition(" ")
        return cls(secrets, sessions)

    def __str__(self) -> str:
        return f"{self.secrets} {self.sessions}"


async def check_encryption_key(stores: Stores, key: bytes, file: str, *, is_new: bool) -> None:
    """Refuses a key that is not the one of the database, unless it is new; records it otherwise."""
    unreadable = await _unreadable_secrets(stores, KeyFile(key))
    given = KeyDigests.of(key)
    record = await stores.encryption_key.recorded()
    if not record and (is_new or not unreadable):
        record = await stores.encryption_key.recorded_or(str(given))
    recorded = KeyDigests.parse(record)
    if record and recorded.secrets != given.secrets:
        if not is_new:
            raise _refused(file, unreadable)
        log.warning("the encryption key has been replaced", file=file, hint=_SIGN_IN_AGAIN)
    elif record and recorded.sessions != given.sessions:
        hint = f"its first {KEY_BYTES} bytes are the same, so secrets can be read; {_SIGN_IN_AGAIN}"
        log.warning("the encryption key has changed", file=file, hint=hint)
    if record and recorded != given:
        await stores.encryption_key.record(str(given))
    if unreadable:
        log.warning(
            "stored secrets cannot be read with this encryption key",
            file=file,
            secrets=unreadable,
            hint=_ENTER_AGAIN,
        )


async def _unreadable_secrets(stores: Stores, key_file: KeyFile) -> list[str]:
    """The stored secrets that the key does not decrypt, in words."""
    projects = await stores.projects.list()
    encrypted = [secret for project in projects for secret in _encrypted_in(project)]
    for project, webhook in await stores.webhook_secrets.list():
        encrypted.append((f"the webhook secret of project {project}", webhook.current))
    return [name for name, text in encrypted if not _is_readable(key_file, text)]


def _encrypted_in(project: Project) -> Iterator[tuple[str, str]]:
    """The encrypted secrets of a project, each with its name."""
    github, oidc = project.sso.github, project.sso.oidc
    if github.client_secret:
        yield f"the GitHub client id and secret of project {project.id}", github.client_secret
    # Upstream and earlier versions store it in plain text.
    if is_sealed(oidc.client_secret):
        yield f"the client secret of project {project.id}", oidc.client_secret


def _is_readable(key_file: KeyFile, text: str) -> bool:
    try:
        key_file.unseal(text) if is_sealed(text) else key_file.decrypt(text)
    except UserMistake:
        return False
    return True


def _refused(file: str, unreadable: Sequence[str]) -> UserMistake:
    lost = "all users would be signed out"
    if unreadable:
        lost += ", and these stored secrets would be unreadable: " + ", ".join(unreadable)
    return UserMistake(
        f"the encryption key in {file} is not the one that this database was used with: {lost}",
        hint=_REPLACED_HINT,
    )


def _digest(key: bytes) -> str:
    return hmac.new(key, b"encryption key of a control plane", sha256).hexdigest()
