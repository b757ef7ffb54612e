# SPDX-License-Identifier: Apache-2.0
"""Signing in through another site: GitHub, or any provider of OpenID Connect."""

from pipecd.controlplane.auth.sso.github import GitHub
from pipecd.controlplane.auth.sso.oidc import Oidc
from pipecd.controlplane.auth.sso.provider import Identity, Provider, Trip
from pipecd.model.clock import Now
from pipecd.model.errors import UserMistake
from pipecd.proto.model.project_pb2 import ProjectSSOConfig

_KINDS = ProjectSSOConfig.Provider


def provider_of(config: ProjectSSOConfig, now: Now) -> Provider:
    """The provider that a configuration with readable secrets describes."""
    if (fault := fault_of(config)) is not None:
        raise UserMistake(fault)
    return GitHub(config.github) if config.provider == _KINDS.GITHUB else Oidc(config.oidc, now)


def fault_of(config: ProjectSSOConfig) -> str | None:
    """What is missing in a configuration, if anything."""
    match config.provider:
        case _KINDS.GITHUB:
            return GitHub.fault_of(config.github)
        case _KINDS.OIDC:
            return Oidc.fault_of(config.oidc)
        case _:
            return f"provider {_name(config.provider)} is not supported"


def _name(kind: int) -> str:
    value = _KINDS.DESCRIPTOR.values_by_number.get(kind)
    return value.name if value else str(kind)


__all__ = ["Identity", "Provider", "Trip", "fault_of", "provider_of"]
