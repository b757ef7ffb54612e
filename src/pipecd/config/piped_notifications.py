# SPDX-License-Identifier: Apache-2.0
"""Who is told about what."""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from pipecd.config.application import ANY_EVENT, EVENTS, known_event
from pipecd.config.spec import Advice, Spec, must_be_set, refuse

SUBTEAM = "!subteam^"
GROUPS = ("DEPLOYMENT", "APPLICATION_SYNC", "APPLICATION_HEALTH", "PIPED", "STAGE")

_WORD = r"[\w!#$%&'*+/=?^`{|}~-]+"
ADDRESS = re.compile(
    rf"{_WORD}(?:\.{_WORD})*@(?:[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*|\[[0-9A-Fa-f.:]+\])", re.ASCII
)


def is_mail_address(text: str) -> bool:
    """Whether mail can be addressed to the text, which has no name of a person in it."""
    return ADDRESS.fullmatch(text) is not None


class TemplateSpec(Spec):
    """Words for one event in place of the usual ones; an empty text keeps the usual one."""

    event: str = ANY_EVENT
    title: str = ""
    text: str = ""

    @field_validator("event")
    @classmethod
    def _known(cls, event: str) -> str:
        return known_event(event)


class RouteSpec(Spec):
    """Which events go to one receiver; event and group names come without `EVENT_`."""

    name: str = ""
    receiver: str = ""
    events: tuple[str, ...] = ()
    ignore_events: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    ignore_groups: tuple[str, ...] = ()
    apps: tuple[str, ...] = ()
    ignore_apps: tuple[str, ...] = ()
    labels: Mapping[str, str] = Field(default_factory=dict[str, str])
    ignore_labels: Mapping[str, str] = Field(default_factory=dict[str, str])
    templates: tuple[TemplateSpec, ...] = ()

    def advice(self) -> Iterator[Advice]:
        for key, names, known in (
            ("events", self.events, EVENTS),
            ("ignoreEvents", self.ignore_events, EVENTS),
            ("groups", self.groups, GROUPS),
            ("ignoreGroups", self.ignore_groups, GROUPS),
        ):
            for i, name in enumerate(names):
                if name not in known:
                    told = f"{name!r} never happens, use one of {', '.join(known)}"
                    yield Advice((key, i), told)


class SlackSpec(Spec):
    """A Slack channel, reached by an incoming webhook or by the API with a token."""

    hook_url: Annotated[str, Field(alias="hookURL", repr=False)] = ""
    oauth_token: Annotated[str, Field(repr=False)] = ""
    oauth_token_data: Annotated[str, Field(repr=False)] = ""
    oauth_token_file: str = ""
    channel_id: Annotated[str, Field(alias="channelID")] = ""
    api_url: Annotated[str, Field(alias="apiURL")] = ""
    mentioned_accounts: tuple[str, ...] = ()
    mentioned_groups: tuple[str, ...] = ()

    @field_validator("mentioned_accounts")
    @classmethod
    def _without_at(cls, accounts: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(account.removeprefix("@") for account in accounts)

    @field_validator("mentioned_groups")
    @classmethod
    def _as_subteams(cls, groups: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(g if SUBTEAM in g else f"<{SUBTEAM}{g}>" for g in groups)

    @model_validator(mode="after")
    def _one_way_to_send(self) -> Self:
        tokens = [t for t in (self.oauth_token, self.oauth_token_data, self.oauth_token_file) if t]
        by_hook = bool(self.hook_url)
        refuse(
            self,
            (
                by_hook and (tokens or self.channel_id),
                "hookURL",
                "only one of sending via hook URL or API should be used",
            ),
            (
                not by_hook and not (tokens and self.channel_id),
                "",
                "missing channelID or OAuth token configuration",
            ),
            (
                not by_hook and len(tokens) > 1,
                "",
                "only one of OAuthToken, OAuthTokenData and OAuthTokenFile should be set",
            ),
        )
        return self


class WebhookSpec(Spec):
    """An HTTP endpoint that receives every event as JSON; `signatureKey` names the header.

    The value of that header is the same each time. With a signing secret every body is signed
    too, as Standard Webhooks say.
    """

    url: Annotated[str, Field(repr=False)] = ""
    signature_key: str = "PipeCD-Signature"
    signature_value: Annotated[str, Field(repr=False)] = ""
    signature_value_file: str = ""
    signing_secret: Annotated[str, Field(repr=False)] = ""
    signing_secret_file: str = ""

    @model_validator(mode="after")
    def _one_secret(self) -> Self:
        refuse(
            self,
            (
                self.signing_secret and self.signing_secret_file,
                "signingSecretFile",
                "only one of signingSecret and signingSecretFile can be set",
            ),
        )
        return self


class HookSpec(Spec):
    """A channel with a webhook URL, which is secret: everybody who has it may post."""

    kind: ClassVar[str]
    hook_url: Annotated[str, Field(alias="hookURL", repr=False)] = ""
    hook_url_file: Annotated[str, Field(alias="hookURLFile")] = ""

    @model_validator(mode="after")
    def _one_address(self) -> Self:
        refuse(
            self,
            (
                bool(self.hook_url) == bool(self.hook_url_file),
                "",
                "exactly one of hookURL and hookURLFile must be set",
            ),
        )
        return self


class TeamsSpec(HookSpec):
    """A channel of Microsoft Teams; people are named by the address they sign in with."""

    kind: ClassVar[str] = "teams"
    mentioned_users: tuple[str, ...] = ()


class DiscordSpec(HookSpec):
    """A channel of Discord; people and roles are named by their ids."""

    kind: ClassVar[str] = "discord"
    mentioned_users: tuple[str, ...] = ()
    mentioned_roles: tuple[str, ...] = ()


_MAIL_PORTS = {"STARTTLS": 587, "TLS": 465, "NONE": 25}


class EmailSpec(Spec):
    """People who read mail, and the server that takes it; a port of 0 is the usual one."""

    host: Annotated[str, Field(validate_default=True), must_be_set("host")] = ""
    port: int = 0
    tls: Literal["STARTTLS", "TLS", "NONE"] = "STARTTLS"
    ca_file: str = ""
    username: str = ""
    password: Annotated[str, Field(repr=False)] = ""
    password_file: str = ""
    sender: Annotated[str, Field(alias="from")] = ""
    to: tuple[str, ...] = ()

    @property
    def server_port(self) -> int:
        """The port to connect to."""
        return self.port or _MAIL_PORTS[self.tls]

    @model_validator(mode="after")
    def _deliverable(self) -> Self:
        refuse(
            self,
            (not 0 <= self.port < 65536, "port", "must be a port between 1 and 65535"),
            (not is_mail_address(self.sender), "from", _ADDRESS_WANTED),
            (not self.to, "to", "name at least one address"),
            *((not is_mail_address(a), ("to", i), _ADDRESS_WANTED) for i, a in enumerate(self.to)),
            (
                self.password and self.password_file,
                "passwordFile",
                "only one of password and passwordFile can be set",
            ),
            (
                (self.password or self.password_file) and not self.username,
                "username",
                "must be set when there is a password",
            ),
        )
        return self


_ADDRESS_WANTED = "must be an address such as team@example.com"


class ReceiverSpec(Spec):
    """A receiver of notifications; if both slack and webhook are set, slack is used."""

    name: str = ""
    slack: SlackSpec | None = None
    webhook: WebhookSpec | None = None
    teams: TeamsSpec | None = None
    discord: DiscordSpec | None = None
    email: EmailSpec | None = None
    templates: tuple[TemplateSpec, ...] = ()

    @classmethod
    def kinds(cls) -> tuple[str, ...]:
        """The sections of which a receiver has one, in order of precedence."""
        return tuple(name for name in cls.model_fields if name not in ("name", "templates"))

    @property
    def kind(self) -> str | None:
        """The kind of this receiver, or None if no section is set."""
        return next((kind for kind in self.kinds() if getattr(self, kind) is not None), None)

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        *others, last = self.kinds()
        sections = {kind for kind in self.kinds() if getattr(self, kind) is not None}
        refuse(
            self,
            (
                len(sections) > 1 and sections != {"slack", "webhook"},
                "",
                f"only one of {', '.join(others)} and {last} can be set; make a receiver for each",
            ),
        )
        return self


class NotificationsSpec(Spec):
    """Routes and the receivers they name."""

    routes: tuple[RouteSpec, ...] = ()
    receivers: tuple[ReceiverSpec, ...] = ()

    @model_validator(mode="after")
    def _receivers_exist(self) -> Self:
        known = {receiver.name for receiver in self.receivers}
        refuse(
            self,
            *(
                (
                    route.receiver not in known,
                    ("routes", i, "receiver"),
                    f"missing receiver {route.receiver} that is used in route {route.name}",
                )
                for i, route in enumerate(self.routes)
            ),
        )
        return self
