# SPDX-License-Identifier: Apache-2.0
"""The plugin `kubernetes_multicluster`: deploys to several clusters at the same time."""

from collections.abc import Iterable

import structlog

from pipecd.plugins.kubernetes.cluster_target import ClusterTarget
from pipecd.plugins.kubernetes.config import (
    MULTICLUSTER_CONFIG,
    MulticlusterApplication,
    MulticlusterInput,
    MultiTarget,
)
from pipecd.plugins.kubernetes.manifest import Manifest
from pipecd.plugins.kubernetes.plugin import ROLLBACK, ClusterPlugin, PluginContext
from pipecd.plugins.kubernetes.workload import all_images
from pipecd.sdk import Source, Stage, StageContext
from pipecd.sdk.images import Image

logger = structlog.get_logger()

_PREFIX = "K8S_MULTI_"


class KubernetesMulticlusterPlugin(ClusterPlugin):
    """Deploys manifests to all deploy targets of an application, or to those in `multiTargets`.

    A stage finishes its work on every cluster even if it fails on one of them, so that a rollback
    starts from a defined state.
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
        """Returns the clusters in `input.multiTargets`, by default all deploy targets."""
        settings = source.application_settings(context.plugin.name, MulticlusterApplication)
        entries = {entry.target.name: entry for entry in settings.input.multi_targets}
        unknown = [name for name in entries if name not in {t.name for t in context.targets}]
        if unknown and isinstance(context, StageContext):
            line = f"No deploy target of this application is named {', '.join(unknown)}"
            context.log.info(line)
        elif unknown:
            logger.warning("skipped unknown deploy targets in input.multiTargets", targets=unknown)
        targets: list[ClusterTarget] = []
        for deploy_target in context.targets:
            if entries and deploy_target.name not in entries:
                continue
            entry = entries.get(deploy_target.name, MultiTarget())
            fields = entry.model_dump(include=set(MulticlusterInput.model_fields))
            overrides = {name: value for name, value in fields.items() if value}
            merged = settings.input.model_copy(update={**overrides, "multi_targets": ()})
            application = settings.model_copy(update={"input": merged})
            targets.append(
                ClusterTarget(deploy_target, application, kustomize_dir=entry.kustomize_dir)
            )
        return targets


PLUGIN = KubernetesMulticlusterPlugin
