# SPDX-License-Identifier: Apache-2.0
"""Notifications of piped: routes, receivers and message templates."""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from pipecd.config.application import ANY_EVENT, EVENTS, check_event
from pipecd.config.spec import Advice, Spec, must_be_set, refuse

SUBTEAM = "!subteam^"
EVENT_GROUPS = ("DEPLOYMENT", "APPLICATION_SYNC", "APPLICATION_HEALTH", "PIPED", "STAGE")

_ATOM = r"[\w!#$%&'*+/=?^`{|}~-]+"
ADDRESS = re.compile(
    rf"{_ATOM}(?:\.{_ATOM})*@(?:[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*|\[[0-9A-Fa-f.:]+\])", re.ASCII
)


def is_mail_address(text: str) -> bool:
    """Report whether a text is a bare mail address, without a display name."""
    return ADDRESS.fullmatch(text) is not None


class TemplateSpec(Spec):
    """A message template for one event; an empty title or text means the default one."""

    event: str = ANY_EVENT
    title: str = ""
    text: str = ""

    @field_validator("event")
    @classmethod
    def _event_exists(cls, event: str) -> str:
        return check_event(event)


class RouteSpec(Spec):
    """Selects the events for one receiver; event and group names have no prefix `EVENT_`."""

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
        for key, names, allowed in (
            ("events", self.events, EVENTS),
            ("ignoreEvents", self.ignore_events, EVENTS),
            ("groups", self.groups, EVENT_GROUPS),
            ("ignoreGroups", self.ignore_groups, EVENT_GROUPS),
        ):
            for i, name in enumerate(names):
                if name not in allowed:
                    yield Advice(
                        (key, i), f"{name!r} does not exist, use one of {', '.join(allowed)}"
                    )


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
    def _hook_or_api(self) -> Self:
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
    """An HTTP endpoint that receives events as JSON; `signatureKey` is the name of a header.

    The value of that header is constant. With a signing secret every body is signed as well,
    according to Standard Webhooks.
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
    def _one_url(self) -> Self:
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
    """A channel of Microsoft Teams; users are named by the address they sign in with."""

    kind: ClassVar[str] = "teams"
    mentioned_users: tuple[str, ...] = ()


class DiscordSpec(HookSpec):
    """A channel of Discord; users and roles are named by their ids."""

    kind: ClassVar[str] = "discord"
    mentioned_users: tuple[str, ...] = ()
    mentioned_roles: tuple[str, ...] = ()


_MAIL_PORTS = {"STARTTLS": 587, "TLS": 465, "NONE": 25}


class EmailSpec(Spec):
    """Mail recipients and the SMTP server; port 0 is the default port of the TLS mode."""

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
        """Return the port to connect to."""
        return self.port or _MAIL_PORTS[self.tls]

    @model_validator(mode="after")
    def _valid_addresses(self) -> Self:
        refuse(
            self,
            (not 0 <= self.port < 65536, "port", "must be a port between 1 and 65535"),
            (not is_mail_address(self.sender), "from", _INVALID_ADDRESS),
            (not self.to, "to", "name at least one address"),
            *((not is_mail_address(a), ("to", i), _INVALID_ADDRESS) for i, a in enumerate(self.to)),
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


_INVALID_ADDRESS = "must be an address such as team@example.com"


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
        """Return the sections of which a receiver has one, in order of precedence."""
        return tuple(name for name in cls.model_fields if name not in ("name", "templates"))

    @property
    def kind(self) -> str | None:
        """Return the kind of this receiver, or None if no section is set."""
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
        names = {receiver.name for receiver in self.receivers}
        refuse(
            self,
            *(
                (
                    route.receiver not in names,
                    ("routes", i, "receiver"),
                    f"missing receiver {route.receiver} that is used in route {route.name}",
                )
                for i, route in enumerate(self.routes)
            ),
        )
        return self
