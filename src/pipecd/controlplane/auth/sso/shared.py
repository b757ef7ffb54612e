# SPDX-License-Identifier: Apache-2.0
"""The sign-ins that several projects share, in the form that projects have them."""

from collections.abc import Iterable, Mapping

from pipecd.config.controlplane.signin import SharedSSOConfigSpec
from pipecd.config.spec import Spec
from pipecd.proto.model.project_pb2 import ProjectSSOConfig


def shared_configs(specs: Iterable[SharedSSOConfigSpec]) -> Mapping[str, ProjectSSOConfig]:
    """The shared sign-ins of the configuration file by name; their secrets are readable."""
    return {spec.name: _config(spec) for spec in specs}


def _config(spec: SharedSSOConfigSpec) -> ProjectSSOConfig:
    return ProjectSSOConfig(
        provider=ProjectSSOConfig.Provider.Value(spec.provider),
        session_ttl=spec.session_ttl,
        github=ProjectSSOConfig.GitHub(**_fields(spec.github)),
        oidc=ProjectSSOConfig.Oidc(**_fields(spec.oidc)),
    )


def _fields(spec: Spec | None) -> dict[str, str]:
    return spec.model_dump() if spec is not None else {}
