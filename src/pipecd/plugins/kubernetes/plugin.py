# SPDX-License-Identifier: Apache-2.0
"""Deploys to a Kubernetes cluster."""

from pipecd.plugins.kubernetes.aim import Aim
from pipecd.plugins.kubernetes.application import KubernetesApplication
from pipecd.plugins.kubernetes.clusters import ROLLBACK, Asked, ClusterPlugin
from pipecd.plugins.kubernetes.config import CONFIG
from pipecd.plugins.kubernetes.route import routes
from pipecd.sdk import Source, Stage

_PREFIX = "K8S_"


class KubernetesPlugin(ClusterPlugin):
    """Deploys manifests to one cluster, the first of an application's deploy targets.

    Objects that the application routes elsewhere go to other deploy targets of the piped.
    """

    prefix = _PREFIX
    stages = (
        *(Stage(name, options) for name, options in CONFIG.stages.items()),
        Stage(_PREFIX + ROLLBACK),
    )
    config = CONFIG

    def aims(self, asked: Asked, source: Source) -> list[Aim]:
        settings = source.application_settings(asked.plugin.name, KubernetesApplication)
        own, declared = asked.targets[0], settings.resource_routes
        if not declared:
            return [Aim(own, settings)]
        found = routes(own.name, declared, asked.plugin.targets)
        others = [t for t in asked.plugin.targets if t.name in found.targets - {own.name}]
        return [Aim(target, settings, routes=found) for target in (own, *others)]


PLUGIN = KubernetesPlugin
