# SPDX-License-Identifier: Apache-2.0
"""A project as its settings page shows it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pipecd.controlplane.auth.rbac_policy import render_policies
from pipecd.proto.model.project_pb2 import Project, ProjectSSOConfig

GITHUB, OIDC = "github", "oidc"
# The fields of a sign-in as the form names them, and what they are called.
FIELDS: Mapping[str, Mapping[str, str]] = {
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
        "redirect_uri": "Callback address, when it differs",
        "scopes": "Scopes, separated by spaces",
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
class Problem:
    """What was wrong with a form, and what was typed into it."""

    form: str
    text: str
    typed: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class SignInView:
    """How people sign in through another site; `provider` is empty when they cannot."""

    provider: str = ""
    shared: str = ""
    hours: int = 0
    values: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def is_set(self) -> bool:
        return bool(self.provider or self.shared)


@dataclass(frozen=True)
class RoleView:
    name: str
    policies: str
    is_built_in: bool
    groups: tuple[str, ...]


@dataclass(frozen=True)
class ProjectView:
    """The settings of a project; `why_not` says why the visitor cannot change them."""

    id: str
    description: str
    username: str
    is_admin_disabled: bool
    sign_in: SignInView
    roles: tuple[RoleView, ...]
    groups: tuple[tuple[str, str], ...]
    callback: str
    why_not: str = ""


def project_view(project: Project, *, callback: str, why_not: str) -> ProjectView:
    """What to show of a project that has its roles and groups but no secrets."""
    groups = tuple((group.sso_group, group.role) for group in project.user_groups)
    return ProjectView(
        id=project.id,
        description=project.desc,
        username=project.static_admin.username,
        is_admin_disabled=project.static_admin_disabled,
        sign_in=_sign_in(project),
        roles=tuple(
            RoleView(
                role.name,
                render_policies(role.policies),
                role.is_builtin,
                tuple(group for group, name in groups if name == role.name),
            )
            for role in project.rbac_roles
        ),
        groups=groups,
        callback=callback,
        why_not=why_not,
    )


def _sign_in(project: Project) -> SignInView:
    if project.shared_sso_name:
        return SignInView(shared=project.shared_sso_name)
    if not project.HasField("sso"):
        return SignInView()
    provider = GITHUB if project.sso.provider == ProjectSSOConfig.Provider.GITHUB else OIDC
    stored = getattr(project.sso, provider)
    values = {name: _text(getattr(stored, name)) for name in FIELDS[provider]}
    return SignInView(provider, "", project.sso.session_ttl, values)


def _text(value: object) -> str:
    return value if isinstance(value, str) else " ".join(value)  # type: ignore[arg-type]
