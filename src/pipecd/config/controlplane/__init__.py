# SPDX-License-Identifier: Apache-2.0
"""The kind ControlPlane: where a control plane keeps things and who may sign in."""

from pipecd.config.controlplane.insight import (
    ApplicationInsightSpec,
    DeploymentInsightSpec,
    InsightCollectorSpec,
)
from pipecd.config.controlplane.signin import (
    GitHubSpec,
    OidcSpec,
    ProjectSpec,
    SharedSSOConfigSpec,
    StaticAdminSpec,
)
from pipecd.config.controlplane.spec import CacheSpec, ControlPlaneSpec, camel_cased_sign_ins
from pipecd.config.controlplane.storage import (
    DatastoreConfig,
    DatastoreSpec,
    FilestoreConfig,
    FilestoreSpec,
)

__all__ = [
    "ApplicationInsightSpec",
    "CacheSpec",
    "ControlPlaneSpec",
    "DatastoreConfig",
    "DatastoreSpec",
    "DeploymentInsightSpec",
    "FilestoreConfig",
    "FilestoreSpec",
    "GitHubSpec",
    "InsightCollectorSpec",
    "OidcSpec",
    "ProjectSpec",
    "SharedSSOConfigSpec",
    "StaticAdminSpec",
    "camel_cased_sign_ins",
]
