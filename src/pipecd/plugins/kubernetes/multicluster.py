# SPDX-License-Identifier: Apache-2.0
"""Deploys to several Kubernetes clusters at the same time."""

from collections.abc import Iterable

import structlog

from pipecd.plugins.kubernetes.aim import Aim, aims, unknown_targets
from pipecd.plugins.kubernetes.application import MulticlusterApplication
from pipecd.plugins.kubernetes.clusters import ROLLBACK, Asked, ClusterPlugin
from pipecd.plugins.kubernetes.config import MULTICLUSTER_CONFIG
from pipecd.plugins.kubernetes.manifest.image import Image, all_images
from pipecd.plugins.kubernetes.manifest.manifest import Manifest
from pipecd.sdk import Source, Stage, StageContext

logger = structlog.get_logger()

_PREFIX = "K8S_MULTI_"


class KubernetesMulticlusterPlugin(ClusterPlugin):
    """Deploys manifests to all deploy targets of an application, or to those that it names.

    What has begun on one cluster is finished, whatever happens on the others, so that the state
    of each is known; a rollback afterwards reaches all of them.
    """

    prefix = _PREFIX
    stages = (
        *(Stage(name, options) for name, options in MULTICLUSTER_CONFIG.stages.items()),
        Stage(_PREFIX + ROLLBACK),
    )
    config = MULTICLUSTER_CONFIG

    def images(self, manifest: Manifest) -> Iterable[Image]:
        """Upstream's plugin for several clusters counts all containers."""
        return all_images(manifest)

    def aims(self, asked: Asked, source: Source) -> list[Aim]:
        settings = source.application_settings(asked.plugin.name, MulticlusterApplication)
        unknown = unknown_targets(settings, asked.targets)
        if unknown and isinstance(asked, StageContext):
            told = f"No deploy target of this application is named {', '.join(unknown)}"
            asked.log.info(told)
        elif unknown:
            logger.warning("unknown deploy targets are left out", targets=unknown)
        return aims(settings, asked.targets)


PLUGIN = KubernetesMulticlusterPlugin
