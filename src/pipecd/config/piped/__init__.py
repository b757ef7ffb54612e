# SPDX-License-Identifier: Apache-2.0
"""The kind Piped: what an agent is told about itself, Git, plugins and whom to notify."""

from pipecd.config.piped.credential import (
    KeyPair,
    git_password,
    key_pair,
    piped_key,
    slack_token,
    ssh_key,
    webhook_signature,
)
from pipecd.config.piped.git import GitSpec, RepositorySpec
from pipecd.config.piped.mask import MASK, masked, reported_config
from pipecd.config.piped.notification import (
    NotificationsSpec,
    ReceiverSpec,
    RouteSpec,
    SlackSpec,
    WebhookSpec,
)
from pipecd.config.piped.plugin import DeployTargetSpec, PluginSpec
from pipecd.config.piped.secret import SecretManagementConfig, SecretManagementSpec
from pipecd.config.piped.spec import (
    AgentSpec,
    IdentitySpec,
    PipedSpec,
    PlatformProviderSpec,
    V0PipedSpec,
)
from pipecd.config.piped.translate import decode_piped, is_v0, with_default_kubernetes
from pipecd.config.piped.watcher import EventWatcherRepoSpec, EventWatcherSpec, PlanPreviewSpec

__all__ = [
    "MASK",
    "AgentSpec",
    "DeployTargetSpec",
    "EventWatcherRepoSpec",
    "EventWatcherSpec",
    "GitSpec",
    "IdentitySpec",
    "KeyPair",
    "NotificationsSpec",
    "PipedSpec",
    "PlanPreviewSpec",
    "PlatformProviderSpec",
    "PluginSpec",
    "ReceiverSpec",
    "RepositorySpec",
    "RouteSpec",
    "SecretManagementConfig",
    "SecretManagementSpec",
    "SlackSpec",
    "V0PipedSpec",
    "WebhookSpec",
    "decode_piped",
    "git_password",
    "is_v0",
    "key_pair",
    "masked",
    "piped_key",
    "reported_config",
    "slack_token",
    "ssh_key",
    "webhook_signature",
    "with_default_kubernetes",
]
