# SPDX-License-Identifier: Apache-2.0
"""The state that all stages of a plugin share, and the session of one stage on one cluster."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pipecd.plugins.kubernetes.apply import apply_all, create_namespaces
from pipecd.plugins.kubernetes.cluster import Cluster, open_cluster
from pipecd.plugins.kubernetes.cluster_target import ClusterTarget
from pipecd.plugins.kubernetes.config import (
    Application,
    ChartSources,
    KubernetesTarget,
    Variant,
)
from pipecd.plugins.kubernetes.informer import ClusterInformers
from pipecd.plugins.kubernetes.loader import ManifestLoader, RenderRequest
from pipecd.plugins.kubernetes.managed_objects import delete_all, list_managed
from pipecd.plugins.kubernetes.manifest import (
    Manifest,
    TrackingLabels,
    with_variant_label,
)
from pipecd.plugins.kubernetes.metrics import Metrics
from pipecd.plugins.kubernetes.readiness import NO_WAIT, wait_until_ready
from pipecd.plugins.kubernetes.variant import VariantBuilder
from pipecd.sdk import Source, StageContext, StartContext, UserMistake
from pipecd.sdk.config import Duration
from pipecd.sdk.counts import counted


@dataclass(frozen=True)
class PluginState:
    """The state that all calls of a plugin share, from its start to its end."""

    loader: ManifestLoader
    informers: ClusterInformers
    metrics: Metrics


def open_plugin_state(start: StartContext) -> PluginState:
    """Starts the informers and creates the manifest loader; both end with the plugin."""
    directory = start.lifetime.enter_context(tempfile.TemporaryDirectory(prefix="pipecd-"))
    metrics = Metrics(start)
    informers = ClusterInformers(start.host.live_state_changed, metrics)
    task = asyncio.create_task(informers.run(), name="cluster informers")

    async def stop() -> None:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    start.lifetime.push_async_callback(stop)
    loader = ManifestLoader(
        start.plugin.settings(ChartSources),
        Path(directory),
        start.host.git_variables,
        rendering=start.host.rendering,
        workers=start.host.workers,
        record_call=metrics.record_tool_call,
    )
    return PluginState(loader, informers, metrics)


@dataclass(frozen=True)
class StageSession:
    """One stage on one cluster."""

    stage: StageContext
    target: ClusterTarget
    cluster: Cluster
    loader: ManifestLoader
    is_only_target: bool = True

    @property
    def application(self) -> Application:
        """The settings of the application on this cluster."""
        return self.target.application

    def log(self, line: str) -> None:
        """Writes to the stage log, with the deploy target's name when there are several."""
        self.stage.log.info(line if self.is_only_target else f"[{self.target.name}] {line}")

    def running(self) -> Source:
        """Returns the source of the running commit; a first deployment has none and fails."""
        if self.stage.running is None:
            raise UserMistake(
                "there is no running commit yet",
                hint="this stage needs a successful deployment before it",
            )
        return self.stage.running

    async def manifests(self, source: Source) -> list[Manifest]:
        """Returns the manifests of a source as they are in Git."""
        manifests = await self.loader.load(
            RenderRequest(
                source,
                self.application.input,
                release=self.stage.deployment.application_name,
                installer=self.stage,
                kustomize_dir=self.target.kustomize_dir,
            )
        )
        if not manifests:
            raise UserMistake(
                f"there are no manifests in {source.config_filename}'s directory",
                hint="add some, or correct input.manifests",
            )
        self.log(f"Loaded {counted(len(manifests), 'manifest')} of commit {source.commit[:7]}")
        return manifests

    def variant_builder(self, variant: Variant, suffix: str) -> VariantBuilder:
        """Returns the builder of a variant's objects; `suffix` is that of the stage."""
        label = self.application.variant_label
        suffix = self.application.suffix(variant, suffix)
        return VariantBuilder(label.key, label.value(variant), suffix)

    async def apply(
        self,
        manifests: Sequence[Manifest],
        source: Source,
        variant: Variant,
        *,
        ready_within: Duration = NO_WAIT,
    ) -> list[Manifest]:
        """Applies objects with the tracking labels of this application and returns them.

        Objects that are routed to other clusters are left out. With `ready_within` it waits until
        the applied objects are ready.
        """
        label = self.application.variant_label
        tracking = TrackingLabels(
            piped=self.stage.deployment.piped_id,
            application=self.stage.deployment.application_id,
            commit=source.commit,
            first_generation=self.application.is_first_generation,
        )
        labelled = [
            with_variant_label(tracking.added_to(manifest), label.key, label.value(variant))
            for manifest in manifests
            if self.target.includes(manifest)
        ]
        if self.application.input.auto_create_namespace:
            await create_namespaces(self.cluster, labelled, self.log)
        await apply_all(self.cluster, labelled, self.log)
        await wait_until_ready(self.cluster, labelled, ready_within, self.log)
        return labelled

    async def live(self, variant: Variant | None = None, *, kind: str = "") -> list[Manifest]:
        """Returns the live objects of this application, or those of a variant."""
        label = self.application.variant_label
        return await list_managed(
            self.cluster,
            self.stage.deployment.application_id,
            {label.key: label.value(variant)} if variant else {},
            kind=kind,
        )

    async def delete(self, manifests: Sequence[Manifest]) -> None:
        """Deletes objects of this application from the cluster."""
        application = self.stage.deployment.application_id
        await delete_all(self.cluster, application, manifests, self.log)


@asynccontextmanager
async def open_stage_session(
    stage: StageContext, target: ClusterTarget, state: PluginState, *, is_only_target: bool
) -> AsyncIterator[StageSession]:
    """Connects a stage to the cluster of a deploy target."""
    async with open_cluster(
        target.deploy_target.settings(KubernetesTarget),
        namespace=target.application.input.namespace,
        record_request=state.metrics.record_request,
    ) as cluster:
        yield StageSession(stage, target, cluster, state.loader, is_only_target)
