# SPDX-License-Identifier: Apache-2.0
"""Who is told about what."""

from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator

from pipecd.config.rule import refuse
from pipecd.config.spec import Spec

SUBTEAM = "!subteam^"


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


class SlackSpec(Spec):
    """A Slack channel, reached by an incoming webhook or by the API with a token."""

    hook_url: Annotated[str, Field(alias="hookURL", repr=False)] = ""
    oauth_token: Annotated[str, Field(repr=False)] = ""
    oauth_token_data: Annotated[str, Field(repr=False)] = ""
    oauth_token_file: str = ""
    channel_id: Annotated[str, Field(alias="channelID")] = ""
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
    """An HTTP endpoint that receives every event as JSON; `signatureKey` names the header."""

    url: str = ""
    signature_key: str = "PipeCD-Signature"
    signature_value: Annotated[str, Field(repr=False)] = ""
    signature_value_file: str = ""


class ReceiverSpec(Spec):
    """A named destination; when both are given Slack wins."""

    name: str = ""
    slack: SlackSpec | None = None
    webhook: WebhookSpec | None = None


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
