# SPDX-License-Identifier: Apache-2.0
"""The secrets a piped is given, each read from its file or from its base64 text.

They are read when they are needed, not with the configuration: a file may be mounted later, and
a secret is better not kept.
"""

import base64
import binascii
from dataclasses import dataclass
from pathlib import Path

from pipecd.config.piped.git import GitSpec
from pipecd.config.piped.notification import EmailSpec, HookSpec, SlackSpec, WebhookSpec
from pipecd.config.piped.secret import PreviousKeySpec, SecretManagementConfig
from pipecd.config.piped.spec import IdentitySpec
from pipecd.model.errors import UserMistake


@dataclass(frozen=True, slots=True)
class KeyPair:
    """The PEM texts that encrypt and decrypt the secrets of applications."""

    private: bytes
    public: bytes

    def __repr__(self) -> str:
        return "KeyPair(…)"


def piped_key(spec: IdentitySpec) -> str:
    """Return the key that proves which piped this is."""
    return _text(
        "pipedKeyFile or pipedKeyData",
        _either("pipedKey", spec.piped_key_file, spec.piped_key_data),
    )


def ssh_key(git: GitSpec) -> bytes:
    """Return the private key for Git over SSH, or nothing when none is configured."""
    if not git.ssh_key_file and not git.ssh_key_data:
        return b""
    return _either("git.sshKey", git.ssh_key_file, git.ssh_key_data)


def git_password(git: GitSpec) -> str:
    """Return the password or token for Git over HTTPS, or "" when none is configured."""
    if not git.password:
        return ""
    return _text("git.password", _from_base64("git.password", git.password))


def slack_token(slack: SlackSpec) -> str:
    """Return the token for Slack's API, or "" when a hook URL is used instead."""
    if slack.oauth_token:
        return slack.oauth_token.strip()
    if not slack.oauth_token_file and not slack.oauth_token_data:
        return ""
    key = "notifications.receivers.slack.oauthToken"
    return _text(key, _either(key, slack.oauth_token_file, slack.oauth_token_data))


def webhook_signature(webhook: WebhookSpec) -> str:
    """Return the value of the signature header, read anew so that the file may be rotated."""
    if webhook.signature_value and webhook.signature_value_file:
        raise UserMistake("only either signatureValue or signatureValueFile can be set")
    if not webhook.signature_value_file:
        return webhook.signature_value
    key = "notifications.receivers.webhook.signatureValueFile"
    text = _decoded(key, _from_file(key, webhook.signature_value_file))
    return text.removesuffix("\n").removesuffix("\r")


def signing_secret(webhook: WebhookSpec) -> str:
    """Return the secret that events are signed with, or "" when they are not."""
    if not webhook.signing_secret_file:
        return webhook.signing_secret.strip()
    key = "notifications.receivers.webhook.signingSecretFile"
    return _text(key, _from_file(key, webhook.signing_secret_file))


def hook_url(hook: HookSpec) -> str:
    """Return the address of a channel."""
    if not hook.hook_url_file:
        return hook.hook_url.strip()
    key = "notifications.receivers.hookURLFile"
    return _text(key, _from_file(key, hook.hook_url_file))


def mail_password(email: EmailSpec) -> str:
    """Return the password for the mail server, or "" when none is needed."""
    if not email.password_file:
        return email.password
    key = "notifications.receivers.email.passwordFile"
    return _text(key, _from_file(key, email.password_file))


def key_pair(config: SecretManagementConfig) -> KeyPair:
    """Return the keys that decrypt the secrets of applications."""
    where = "secretManagement.config"
    return KeyPair(
        private=_either(
            f"{where}.privateKey", config.private_key_file, config.private_key_data
        ).strip(),
        public=_either(
            f"{where}.publicKey", config.public_key_file, config.public_key_data
        ).strip(),
    )


def previous_key(key: PreviousKeySpec) -> bytes:
    """Return a private key that was used before."""
    where = "secretManagement.config.previousKeys.privateKey"
    return _either(where, key.private_key_file, key.private_key_data).strip()


def _either(key: str, file: str, data: str) -> bytes:
    return _from_file(f"{key}File", file) if file else _from_base64(f"{key}Data", data)


def _from_file(key: str, path: str) -> bytes:
    try:
        return Path(path).expanduser().read_bytes()
    except OSError as e:
        raise UserMistake(
            f"{key}: cannot read {path}: {e.strerror}",
            hint="name a file that piped may read",
        ) from e


def _from_base64(key: str, text: str) -> bytes:
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except binascii.Error as e:
        raise UserMistake(
            f"{key}: the value is not base64",
            hint="encode it with the standard padded alphabet, such as `base64 -w0 FILE` does",
        ) from e


def _decoded(key: str, content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as e:
        raise UserMistake(f"{key}: the value is not text in UTF-8") from e


def _text(key: str, content: bytes) -> str:
    text = _decoded(key, content).strip()
    if not text:
        raise UserMistake(f"{key}: the value is empty")
    return text
