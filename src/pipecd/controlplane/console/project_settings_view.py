# SPDX-License-Identifier: Apache-2.0
"""View models of the project settings: static admin, single sign-on, roles, groups, webhook."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from pipecd.controlplane.auth.rbac import Action, Permission, Resource, Scope, scope_of
from pipecd.controlplane.auth.rbac_policy import render_policies
from pipecd.controlplane.console.formatting import Timestamp, plural, timestamp
from pipecd.controlplane.console.role_grid import ACTIONS, RESOURCE_NAMES, RoleGrid, grid_of
from pipecd.controlplane.usecases.webhooks import WebhookSettings
from pipecd.proto.model.project_pb2 import Project, ProjectRBACRole, ProjectSSOConfig

GITHUB, OIDC = "github", "oidc"
_MAX_LABELS_TEXT = 40
# The fields without a default, which a form shows first.
FIRST_SSO_FIELDS = ("client_id", "client_secret", "issuer", "scopes", "redirect_uri")
# The form fields of each single sign-on provider, and their labels.
SSO_FIELDS: Mapping[str, Mapping[str, str]] = {
    GITHUB: {
        "client_id": "Client ID",
        "client_secret": "Client secret",
        "base_url": "Base URL of GitHub Enterprise",
        "upload_url": "Upload URL of GitHub Enterprise",
        "proxy_url": "Proxy",
    },
    OIDC: {
        "client_id": "Client ID",
        "client_secret": "Client secret",
        "issuer": "Issuer",
        "scopes": "Scopes, separated by spaces",
        "redirect_uri": "Callback address, when it differs",
        "roles_claim_key": "Claim with the roles",
        "username_claim_key": "Claim with the name",
        "avatar_url_claim_key": "Claim with the picture",
        "authorization_endpoint": "Authorization endpoint",
        "token_endpoint": "Token endpoint",
        "user_info_endpoint": "User info endpoint",
        "proxy_url": "Proxy",
    },
}


@dataclass(frozen=True)
class SsoView:
    """The single sign-on of the project, or the name of a shared one."""

    provider: str = ""
    shared: str = ""
    hours: int = 0
    values: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def is_set(self) -> bool:
        return bool(self.provider or self.shared)

    @property
    def lifetime(self) -> str:
        """How long a session lasts."""
        days, hours = divmod(self.hours, 24)
        return plural(self.hours, "hour") if hours or not days else plural(days, "day")


@dataclass(frozen=True)
class RoleView:
    """A role; `grants` says for each of `RESOURCE_NAMES` what it allows.

    `grid` is None if its policies can be edited as text only.
    """

    name: str
    policies: str
    grid: RoleGrid | None
    grants: tuple[str, ...]
    is_built_in: bool
    groups: tuple[str, ...]

    @property
    def summary(self) -> tuple[tuple[str, str], ...]:
        """What the role allows, each with the resources it allows that on; for narrow screens."""
        names = tuple(RESOURCE_NAMES.values())
        return tuple(
            (
                grant or "nothing",
                ", ".join(n for n, each in zip(names, self.grants, strict=True) if each == grant),
            )
            for grant in dict.fromkeys(self.grants)
        )


def role_grants(role: ProjectRBACRole) -> tuple[str, ...]:
    """What a role allows on each kind of resource, in a few words."""
    return tuple(_grant(role, resource) for resource in RESOURCE_NAMES)


def _grant(role: ProjectRBACRole, resource: Resource) -> str:
    scopes = {action: scope_of((role,), Permission(resource, action)) for action in ACTIONS}
    on_all = [action for action, scope in scopes.items() if scope.is_everything]
    on_some = [a for a, scope in scopes.items() if not (scope.is_everything or scope.is_empty)]
    texts = [_action_text(on_all)] if on_all else []
    texts += [f"{_action_text(on_some)} with {_labels_text(scopes, on_some)}"] if on_some else []
    return "; ".join(texts)


def _labels_text(scopes: Mapping[Action, Scope], actions: Sequence[Action]) -> str:
    """The labels that objects need, if they are few enough for a cell of the table."""
    texts = {
        " or ".join(
            ", ".join(f"{key}:{value}" for key, value in sorted(required.items()))
            for required in scopes[action].labels
        )
        for action in actions
    }
    text = texts.pop()
    return text if not texts and len(text) <= _MAX_LABELS_TEXT else "certain labels"


def _action_text(actions: Sequence[Action]) -> str:
    if len(actions) == len(ACTIONS):
        return "everything"
    if all(action.is_reading for action in actions):
        return "read"
    return ", ".join(action.name.lower() for action in actions)


@dataclass(frozen=True)
class ProjectSettingsView:
    """The settings of a project; the user may change them if `disabled_reason` is empty."""

    id: str
    description: str
    username: str
    is_admin_disabled: bool
    sso: SsoView
    roles: tuple[RoleView, ...]
    groups: tuple[tuple[str, str], ...]
    callback: str
    disabled_reason: str = ""
    may_end_sessions: bool = False
    # What becomes of users of the single sign-on who have no role.
    without_role: str = ""


def _without_role(project: Project) -> str:
    """What becomes of users whose groups have no role; empty without single sign-on by groups."""
    if project.sso.provider != ProjectSSOConfig.Provider.GITHUB or not project.HasField("sso"):
        return ""
    if project.allow_stray_as_viewer:
        return "Users without a group that has a role are viewers."
    if project.user_groups:
        return "Users without one of these groups cannot sign in."
    return "No group has a role yet: until one has, nobody can sign in with GitHub."


def project_settings_view(
    project: Project, *, callback: str, disabled_reason: str, may_end_sessions: bool
) -> ProjectSettingsView:
    """The view of a project; `project` has roles and groups but no secrets."""
    groups = tuple((group.sso_group, group.role) for group in project.user_groups)
    return ProjectSettingsView(
        id=project.id,
        description=project.desc,
        username=project.static_admin.username,
        is_admin_disabled=project.static_admin_disabled,
        sso=_sso(project),
        roles=tuple(
            RoleView(
                role.name,
                render_policies(role.policies),
                grid_of(role.policies),
                role_grants(role),
                role.is_builtin,
                tuple(group for group, name in groups if name == role.name),
            )
            for role in project.rbac_roles
        ),
        groups=groups,
        callback=callback,
        disabled_reason=disabled_reason,
        may_end_sessions=may_end_sessions,
        without_role=_without_role(project),
    )


def _sso(project: Project) -> SsoView:
    if project.shared_sso_name:
        return SsoView(shared=project.shared_sso_name)
    if not project.HasField("sso"):
        return SsoView()
    provider = GITHUB if project.sso.provider == ProjectSSOConfig.Provider.GITHUB else OIDC
    stored = getattr(project.sso, provider)
    raw = {name: getattr(stored, name) for name in SSO_FIELDS[provider]}
    # Scopes are a list.
    values = {name: v if isinstance(v, str) else " ".join(v) for name, v in raw.items()}
    return SsoView(provider, "", project.sso.session_ttl, values)


@dataclass(frozen=True)
class WebhookView:
    """The webhook of a project; `settings` is None before it is created."""

    url: str
    settings: WebhookSettings | None
    created: Timestamp | None = None
    previous_until: Timestamp | None = None
    last_push: Timestamp | None = None


def webhook_view(url: str, settings: WebhookSettings | None, now: datetime) -> WebhookView:
    if settings is None:
        return WebhookView(url, None)
    return WebhookView(
        url,
        settings,
        created=timestamp(settings.created_at, now),
        previous_until=timestamp(settings.previous_until, now),
        last_push=timestamp(settings.last.at, now) if settings.last else None,
    )
