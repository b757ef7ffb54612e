# SPDX-License-Identifier: Apache-2.0
"""The plugin `kubernetes_multicluster`: deploys to several clusters at the same time."""

from collections.abc import Iterable

import structlog

from pipecd.plugins.kubernetes.cluster_target import (
    ClusterTarget,
    multicluster_targets,
    unknown_targets,
)
from pipecd.plugins.kubernetes.config import MULTICLUSTER_CONFIG, MulticlusterApplication
from pipecd.plugins.kubernetes.manifest import Manifest
from pipecd.plugins.kubernetes.plugin import ROLLBACK, ClusterPlugin, PluginContext
from pipecd.plugins.kubernetes.workload import Image, all_images
from pipecd.sdk import Source, Stage, StageContext

logger = structlog.get_logger()

_PREFIX = "K8S_MULTI_"


class KubernetesMulticlusterPlugin(ClusterPlugin):
    """Deploys manifests to all deploy targets of an application, or to those that it names.

    A stage finishes its work on every cluster even if it fails on one of them, so that a rollback
    starts from a known state.
    """

    prefix = _PREFIX
    stages = (
        *(Stage(name, options) for name, options in MULTICLUSTER_CONFIG.stages.items()),
        Stage(_PREFIX + ROLLBACK),
    )
    config = MULTICLUSTER_CONFIG

    def images(self, manifest: Manifest) -> Iterable[Image]:
        """Returns the images of all containers, as upstream's multi-cluster plugin does."""
        return all_images(manifest)

    def cluster_targets(self, context: PluginContext, source: Source) -> list[ClusterTarget]:
        settings = source.application_settings(context.plugin.name, MulticlusterApplication)
        unknown = unknown_targets(settings, context.targets)
        if unknown and isinstance(context, StageContext):
            names = ", ".join(unknown)
            line = f"No deploy target of this application is named {names}"
            context.log.info(line)
        elif unknown:
            logger.warning("skipped unknown deploy targets in input.multiTargets", targets=unknown)
        return multicluster_targets(settings, context.targets)


PLUGIN = KubernetesMulticlusterPlugin
