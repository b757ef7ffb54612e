# SPDX-License-Identifier: Apache-2.0
"""Single sign-on through GitHub or any OpenID Connect provider."""

from collections.abc import Iterable, Mapping

from pipecd.config.controlplane import SharedSSOConfigSpec
from pipecd.controlplane.auth.sso.github import GitHubProvider
from pipecd.controlplane.auth.sso.oidc import OidcMetadataCache, OidcProvider
from pipecd.controlplane.auth.sso.provider import (
    TIMEOUT_HINT,
    AuthRequest,
    AuthResponse,
    SsoIdentity,
    SsoProvider,
)
from pipecd.model.clock import Now
from pipecd.model.errors import UserMistake
from pipecd.proto.model.project_pb2 import ProjectSSOConfig
from pipecd.wire.outbound import OutboundPolicy

_KINDS = ProjectSSOConfig.Provider


def create_provider(
    config: ProjectSSOConfig, policy: OutboundPolicy, metadata: OidcMetadataCache, now: Now
) -> SsoProvider:
    """The provider of a configuration whose secrets are decrypted.

    `policy` says where it may be; `metadata` is shared by providers of the same policy.
    """
    if (error := config_error(config)) is not None:
        raise UserMistake(error)
    if config.provider == _KINDS.GITHUB:
        return GitHubProvider(config.github, policy)
    return OidcProvider(config.oidc, policy, metadata, now)


def config_error(config: ProjectSSOConfig) -> str | None:
    """Why a configuration cannot be used, or None if it can."""
    match config.provider:
        case _KINDS.GITHUB:
            return GitHubProvider.config_error(config.github)
        case _KINDS.OIDC:
            return OidcProvider.config_error(config.oidc)
        case kind:
            value = _KINDS.DESCRIPTOR.values_by_number.get(kind)
            return f"provider {value.name if value else kind} is not supported"


def shared_sso_configs(specs: Iterable[SharedSSOConfigSpec]) -> Mapping[str, ProjectSSOConfig]:
    """The `sharedSSOConfigs` of the control plane by name; their secrets are not encrypted."""
    return {
        spec.name: ProjectSSOConfig(
            provider=_KINDS.Value(spec.provider),
            session_ttl=spec.session_ttl,
            github=ProjectSSOConfig.GitHub(**(spec.github.model_dump() if spec.github else {})),
            oidc=ProjectSSOConfig.Oidc(**(spec.oidc.model_dump() if spec.oidc else {})),
        )
        for spec in specs
    }


__all__ = [
    "TIMEOUT_HINT",
    "AuthRequest",
    "AuthResponse",
    "OidcMetadataCache",
    "SsoIdentity",
    "SsoProvider",
    "config_error",
    "create_provider",
    "shared_sso_configs",
]
