# SPDX-License-Identifier: Apache-2.0
"""Deploys to a Kubernetes cluster."""

from pipecd.plugins.kubernetes.aim import Aim
from pipecd.plugins.kubernetes.application import KubernetesApplication
from pipecd.plugins.kubernetes.clusters import ROLLBACK, Asked, ClusterPlugin
from pipecd.plugins.kubernetes.config import CONFIG
from pipecd.sdk import Source, Stage

_PREFIX = "K8S_"


class KubernetesPlugin(ClusterPlugin):
    """Deploys manifests to one cluster, the first of an application's deploy targets."""

    prefix = _PREFIX
    stages = (
        *(Stage(name, options) for name, options in CONFIG.stages.items()),
        Stage(_PREFIX + ROLLBACK),
    )
    config = CONFIG

    def aims(self, asked: Asked, source: Source) -> list[Aim]:
        settings = source.application_settings(asked.plugin.name, KubernetesApplication)
        return [Aim(asked.targets[0], settings)]


PLUGIN = KubernetesPlugin
