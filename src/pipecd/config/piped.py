# SPDX-License-Identifier: Apache-2.0
"""The kind Piped: identity, Git, plugins, secret management, event watcher, credentials."""

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self
from urllib.parse import urlsplit

from pydantic import Field, ValidationInfo, field_validator, model_validator

from pipecd.config.piped_notifications import (
    EmailSpec,
    HookSpec,
    NotificationsSpec,
    SlackSpec,
    WebhookSpec,
)
from pipecd.config.rendering import RenderingSpec
from pipecd.config.spec import Rule, Spec, must_be_set, no_duplicates, one_of, refuse
from pipecd.config.units import Duration
from pipecd.model.errors import UserMistake

_MAX_PORT = 65535


class GitSpec(Spec):
    """Settings of the Git client; the properties have the effective values."""

    username: str = ""
    email: str = ""
    ssh_config_file_path: str = ""
    host: str = ""
    host_name: str = ""
    ssh_key_file: str = ""
    ssh_key_data: Annotated[str, Field(repr=False)] = ""
    password: Annotated[str, Field(repr=False)] = ""

    @model_validator(mode="after")
    def _one_authentication(self) -> Self:
        has_key = bool(self.ssh_key_file or self.ssh_key_data)
        refuse(
            self,
            (
                has_key and self.password,
                "password",
                "cannot configure both sshKeyData or sshKeyFile and password authentication",
            ),
            (
                self.ssh_key_file and self.ssh_key_data,
                "sshKeyData",
                "only either sshKeyFile or sshKeyData can be set",
            ),
            (
                self.password and not self.username,
                "username",
                "both username and password must be set",
            ),
        )
        return self

    @property
    def ssh_host(self) -> str:
        """Return the `Host` of the key in the SSH configuration."""
        return self.host or "github.com"

    @property
    def ssh_host_name(self) -> str:
        """Return the `Hostname` of the key in the SSH configuration."""
        return self.host_name or self.ssh_host

    @property
    def ssh_config_file(self) -> Path:
        """Return the SSH configuration file that the key is added to."""
        if self.ssh_config_file_path:
            return Path(self.ssh_config_file_path)
        return Path.home() / ".ssh" / "config"


class RepositorySpec(Spec):
    """A Git repository that piped watches."""

    repo_id: str = ""
    remote: str = ""
    branch: str = ""


KEY_PAIR = "KEY_PAIR"
GCP_KMS = "GCP_KMS"
AWS_KMS = "AWS_KMS"

BOUND = "bound"
UNBOUND = "unbound"
_FORMS = (BOUND, UNBOUND)


class PreviousKeySpec(Spec):
    """A former key that still decrypts: a private key, or its name in the key service."""

    private_key_file: str = ""
    private_key_data: Annotated[str, Field(repr=False)] = ""
    key_name: str = ""


class SecretManagementConfig(Spec):
    """The keys of secret management; the type decides which fields are used."""

    private_key_file: str = ""
    private_key_data: Annotated[str, Field(repr=False)] = ""
    public_key_file: str = ""
    public_key_data: str = ""
    key_name: str = ""
    decrypt_service_account_file: str = ""
    encrypt_service_account_file: str = ""
    region: str = ""
    previous_keys: tuple[PreviousKeySpec, ...] = ()


class SecretManagementSpec(Spec):
    """How the secrets in application files are decrypted."""

    type: Annotated[
        str,
        Field(validate_default=True),
        one_of((KEY_PAIR, GCP_KMS, AWS_KMS), "unsupported secret management type: {}"),
    ] = ""
    config: SecretManagementConfig = SecretManagementConfig()
    forms: tuple[Annotated[str, one_of(_FORMS, "unknown form of secrets: {}")], ...] = _FORMS
    """The forms of secrets that piped decrypts, which it reports to the control plane.

    An unbound secret, the form of upstream, can be copied to other applications of the piped.
    """
    decrypt_in_previews: bool = False
    """Whether plan previews of commits that are not merged yet decrypt secrets."""

    @model_validator(mode="after")
    def _has_keys_of_its_type(self) -> Self:
        c = self.config
        rules: list[Rule] = [(not self.forms, "forms", "at least one form must be listed")]
        if self.type == KEY_PAIR:
            rules += _file_or_data("privateKey", c.private_key_file, c.private_key_data, "config")
            rules += _file_or_data("publicKey", c.public_key_file, c.public_key_data, "config")
        else:
            rules.append((not c.key_name, ("config", "keyName"), "keyName must be set"))
        for i, key in enumerate(c.previous_keys):
            path = ("config", "previousKeys", i)
            values = [v for v in (key.private_key_file, key.private_key_data, key.key_name) if v]
            what = "exactly one of privateKeyFile, privateKeyData and keyName must be set"
            rules.append((len(values) != 1, path, what))
            what = f"is for {GCP_KMS} and {AWS_KMS} only"
            rules.append((key.key_name and self.type == KEY_PAIR, (*path, "keyName"), what))
        refuse(self, *rules)
        return self


def _file_or_data(key: str, file: str, data: str, section: str = "") -> list[Rule]:
    """Return the rules that exactly one of two keys is set: the name of a file, or its content."""
    path = (section, f"{key}Data") if section else f"{key}Data"
    return [
        (not file and not data, section, f"either {key}File or {key}Data must be set"),
        (file and data, path, f"only {key}File or {key}Data can be set"),
    ]


class EventWatcherRepoSpec(Spec):
    """Overrides for the event watcher files of one repository."""

    repo_id: str = ""
    commit_message: str = ""
    includes: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()


class EventWatcherSpec(Spec):
    """How often events are polled, and overrides by repository.

    As in upstream, every repository of the piped is watched, listed here or not.
    """

    check_interval: Duration = Duration(60)
    git_repos: tuple[EventWatcherRepoSpec, ...] = ()

    @field_validator("check_interval")
    @classmethod
    def _not_negative(cls, value: Duration) -> Duration:
        if value < 0:
            raise ValueError("eventWatcher.checkInterval must be greater than or equal to 0")
        return value

    @model_validator(mode="after")
    def _has_repo_ids(self) -> Self:
        ids = [repo.repo_id for repo in self.git_repos]
        missing = (
            (not id, ("gitRepos", i, "repoId"), f"missing repoID at index {i}")
            for i, id in enumerate(ids)
        )
        what = "duplicated repo id ({}) found in the eventWatcher directive"
        refuse(self, *missing, *no_duplicates("gitRepos", "repoId", ids, what))
        return self


class PlanPreviewSpec(Spec):
    """Settings of plan previews."""

    worker_num: int = 3
    command_queue_buffer_size: int = 10
    command_check_interval: Duration = Duration(5)
    command_handle_timeout: Duration = Duration(5 * 60)

    @model_validator(mode="after")
    def _no_negative_numbers(self) -> Self:
        numbers = {
            "workerNum": self.worker_num,
            "commandQueueBufferSize": self.command_queue_buffer_size,
            "commandCheckInterval": self.command_check_interval,
            "commandHandleTimeout": self.command_handle_timeout,
        }
        refuse(
            self,
            *(
                (value < 0, key, f"planPreview.{key} must be greater than or equal to 0")
                for key, value in numbers.items()
            ),
        )
        return self


BUILTIN = "builtin"
SCHEMES = ("file", "https", "oci", BUILTIN)
_CHECKSUM = re.compile(r"sha256:[0-9a-fA-F]{64}")


class DeployTargetSpec(Spec):
    """A deploy target of a plugin, such as a cluster or an account."""

    name: Annotated[str, Field(validate_default=True), must_be_set("name")] = ""
    labels: Mapping[str, str] = Field(default_factory=dict[str, str])
    config: Mapping[str, Any] = Field(default_factory=dict[str, Any])


class PluginSpec(Spec):
    """One plugin: the URL of its program, its settings and its deploy targets.

    Without `url`, or with `builtin://NAME`, it is the built-in plugin of that name.
    """

    name: Annotated[str, Field(validate_default=True), must_be_set("name")] = ""
    source_url: Annotated[str, Field(alias="sourceURL", exclude=True)] = ""
    url: str = Field(default="", validate_default=True)
    checksum: str = Field(default="", validate_default=True)
    port: int = Field(default=0, ge=0, le=65535)
    config: Mapping[str, Any] = Field(default_factory=dict[str, Any])
    deploy_targets: tuple[DeployTargetSpec, ...] = ()

    @field_validator("url")
    @classmethod
    def _known_scheme(cls, url: str, info: ValidationInfo) -> str:
        source_url: str = info.data.get("source_url", "")
        if url and source_url and url != source_url:
            raise ValueError("url and sourceURL differ, write only one of them")
        url = url or source_url
        if not url:
            return url
        try:
            parts = urlsplit(url)
        except ValueError as e:
            raise ValueError(f"invalid plugin url: {e}") from e
        if parts.scheme not in SCHEMES:
            raise ValueError("only file, https and oci schemes are supported")
        if parts.scheme == BUILTIN and not parts.netloc:
            raise ValueError("invalid plugin url: write builtin://NAME")
        return url

    @field_validator("checksum")
    @classmethod
    def _is_sha256(cls, checksum: str, info: ValidationInfo) -> str:
        if not checksum:
            return checksum
        if not _CHECKSUM.fullmatch(checksum):
            raise ValueError("write sha256: and the 64 digits that sha256sum prints")
        url: str = info.data.get("url", "")
        if urlsplit(url).scheme in ("", BUILTIN):
            raise ValueError("a checksum requires the url of a program")
        return checksum.lower()

    @model_validator(mode="after")
    def _unique_targets(self) -> Self:
        names = [target.name for target in self.deploy_targets]
        what = "two deploy targets are named {}"
        refuse(self, *no_duplicates("deployTargets", "name", names, what))
        return self

    @property
    def builtin(self) -> str:
        """Return the name of the built-in plugin, or "" for a plugin with its own program."""
        if not self.url:
            return self.name
        parts = urlsplit(self.url)
        # netloc keeps the case of the name, which hostname would fold.
        return parts.netloc if parts.scheme == BUILTIN else ""


class IdentitySpec(Spec):
    """The identity of a piped and its control plane, which is all that a launcher reads."""

    project_id: Annotated[
        str, Field(alias="projectID", validate_default=True), must_be_set("projectID")
    ] = ""
    piped_id: Annotated[
        str, Field(alias="pipedID", validate_default=True), must_be_set("pipedID")
    ] = ""
    piped_key_file: str = ""
    piped_key_data: Annotated[str, Field(repr=False)] = ""
    api_address: Annotated[str, Field(validate_default=True), must_be_set("apiAddress")] = ""

    @field_validator("api_address")
    @classmethod
    def _host_and_port(cls, address: str) -> str:
        if address.lower().startswith(("http://", "https://")):
            raise ValueError(f"{address} is a URL, write host:port, such as pipecd.example.com:443")
        _, colon, port = address.rpartition(":")
        if colon and port.isdigit() and not 0 < int(port) <= _MAX_PORT:
            raise ValueError(f"there is no port {port}, ports end at {_MAX_PORT}")
        return address

    @model_validator(mode="after")
    def _one_key(self) -> Self:
        refuse(self, *_file_or_data("pipedKey", self.piped_key_file, self.piped_key_data))
        return self


class CommonPipedSpec(IdentitySpec):
    """The fields of piped files of both generations."""

    name: str = ""
    web_address: str = ""
    sync_interval: Duration = Duration(60)
    app_config_sync_interval: Duration = Duration(60)
    git: GitSpec = GitSpec()
    repositories: tuple[RepositorySpec, ...] = ()
    notifications: NotificationsSpec = NotificationsSpec()
    secret_management: SecretManagementSpec | None = None
    event_watcher: EventWatcherSpec = EventWatcherSpec()
    plan_preview: PlanPreviewSpec = PlanPreviewSpec()
    rendering: RenderingSpec = RenderingSpec()
    app_selector: Mapping[str, str] = Field(default_factory=dict[str, str])
    require_checksum: bool = False
    tool_mirror: str = ""

    @field_validator("tool_mirror")
    @classmethod
    def _mirror_is_a_url(cls, value: str) -> str:
        if value and not value.startswith("https://"):
            raise ValueError("toolMirror must begin with https://")
        return value.rstrip("/")

    @field_validator("sync_interval")
    @classmethod
    def _sync_not_negative(cls, value: Duration) -> Duration:
        if value < 0:
            raise ValueError("syncInterval must be greater than or equal to 0")
        return value

    @field_validator("app_config_sync_interval")
    @classmethod
    def _app_config_sync_not_negative(cls, value: Duration) -> Duration:
        if value < 0:
            raise ValueError("appConfigSyncInterval must be greater than or equal to 0")
        return value


class PipedSpec(CommonPipedSpec):
    """The `spec` of a v1 piped file, and of a translated v0 file."""

    plugins: tuple[PluginSpec, ...] = ()

    @model_validator(mode="after")
    def _unique_plugins(self) -> Self:
        names = [plugin.name for plugin in self.plugins]
        # Built-in plugins do not listen on a port.
        ports = [str(p.port) if p.port and not p.builtin else "" for p in self.plugins]
        taken = (
            "another plugin has the port {}, write another one or leave it out to get a free one"
        )
        refuse(
            self,
            *no_duplicates("plugins", "name", names, "two plugins are named {}"),
            *no_duplicates("plugins", "port", ports, taken),
        )
        return self


class PlatformProviderSpec(Spec):
    """A platform provider of a v0 file; the plugin of its type checks `config`."""

    name: str = ""
    type: str = ""
    labels: Mapping[str, str] = Field(default_factory=dict[str, str])
    config: Mapping[str, Any] = Field(default_factory=dict[str, Any])


class V0PipedSpec(CommonPipedSpec):
    """The `spec` of a v0 piped file; plugins check the chart and analysis settings."""

    platform_providers: tuple[PlatformProviderSpec, ...] = ()
    cloud_providers: tuple[PlatformProviderSpec, ...] = ()
    analysis_providers: tuple[Mapping[str, Any], ...] = ()
    chart_repositories: tuple[Mapping[str, Any], ...] = ()
    chart_registries: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class KeyPair:
    """The key pair that encrypts and decrypts the secrets of applications, as PEM."""

    private: bytes
    public: bytes

    def __repr__(self) -> str:
        return "KeyPair(…)"


def piped_key(spec: IdentitySpec) -> str:
    """Return the key that authenticates piped to the control plane."""
    content = _read_either("pipedKey", spec.piped_key_file, spec.piped_key_data)
    return _text("pipedKeyFile or pipedKeyData", content)


def ssh_key(git: GitSpec) -> bytes:
    """Return the private key for Git over SSH, or b"" if none is configured."""
    if not git.ssh_key_file and not git.ssh_key_data:
        return b""
    return _read_either("git.sshKey", git.ssh_key_file, git.ssh_key_data)


def git_password(git: GitSpec) -> str:
    """Return the password or token for Git over HTTPS, or "" if none is configured."""
    if not git.password:
        return ""
    return _text("git.password", _decode_base64("git.password", git.password))


def slack_token(slack: SlackSpec) -> str:
    """Return the token for Slack's API, or "" if a hook URL is used instead."""
    if slack.oauth_token:
        return slack.oauth_token.strip()
    if not slack.oauth_token_file and not slack.oauth_token_data:
        return ""
    key = "notifications.receivers.slack.oauthToken"
    return _text(key, _read_either(key, slack.oauth_token_file, slack.oauth_token_data))


def webhook_signature(webhook: WebhookSpec) -> str:
    """Return the value of the signature header; its file is read each time and may be rotated."""
    if webhook.signature_value and webhook.signature_value_file:
        raise UserMistake("only either signatureValue or signatureValueFile can be set")
    if not webhook.signature_value_file:
        return webhook.signature_value
    key = "notifications.receivers.webhook.signatureValueFile"
    text = _utf8(key, _read_file(key, webhook.signature_value_file))
    return text.removesuffix("\n").removesuffix("\r")


def signing_secret(webhook: WebhookSpec) -> str:
    """Return the secret that signs events, or "" if they are not signed."""
    if not webhook.signing_secret_file:
        return webhook.signing_secret.strip()
    return _file_text(
        "notifications.receivers.webhook.signingSecretFile", webhook.signing_secret_file
    )


def hook_url(hook: HookSpec) -> str:
    """Return the webhook URL of a channel."""
    if not hook.hook_url_file:
        return hook.hook_url.strip()
    return _file_text(f"notifications.receivers.{hook.kind}.hookURLFile", hook.hook_url_file)


def mail_password(email: EmailSpec) -> str:
    """Return the password for the mail server, or "" if none is configured."""
    if not email.password_file:
        return email.password
    return _file_text("notifications.receivers.email.passwordFile", email.password_file)


def key_pair(config: SecretManagementConfig) -> KeyPair:
    """Return the keys that decrypt the secrets of applications."""
    where = "secretManagement.config"
    return KeyPair(
        private=_read_either(
            f"{where}.privateKey", config.private_key_file, config.private_key_data
        ).strip(),
        public=_read_either(
            f"{where}.publicKey", config.public_key_file, config.public_key_data
        ).strip(),
    )


def previous_key(key: PreviousKeySpec) -> bytes:
    """Return a former private key."""
    where = "secretManagement.config.previousKeys.privateKey"
    return _read_either(where, key.private_key_file, key.private_key_data).strip()


def _read_either(key: str, file: str, data: str) -> bytes:
    return _read_file(f"{key}File", file) if file else _decode_base64(f"{key}Data", data)


def _read_file(key: str, path: str) -> bytes:
    try:
        return Path(path).expanduser().read_bytes()
    except OSError as e:
        raise UserMistake(
            f"{key}: cannot read {path}: {e.strerror}",
            hint="give piped permission to read it, or correct the path",
        ) from e


def _decode_base64(key: str, text: str) -> bytes:
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except ValueError as e:
        raise UserMistake(
            f"{key}: the value is not base64",
            hint="encode it in standard base64 with padding, such as `base64 -w0 FILE` does",
        ) from e


def _utf8(key: str, content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as e:
        raise UserMistake(f"{key}: the value is not text in UTF-8") from e


def _text(key: str, content: bytes) -> str:
    text = _utf8(key, content).strip()
    if not text:
        raise UserMistake(f"{key}: the value is empty")
    return text


def _file_text(key: str, path: str) -> str:
    return _text(key, _read_file(key, path))
