# SPDX-License-Identifier: Apache-2.0
"""What every stage works with: the manifests of a source, marked, and a cluster to put them on."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from pipecd.plugins.kubernetes.aim import Aim
from pipecd.plugins.kubernetes.application import Application, Variant
from pipecd.plugins.kubernetes.cluster.apply import Cluster, apply_all
from pipecd.plugins.kubernetes.cluster.client import open_client
from pipecd.plugins.kubernetes.cluster.discovery import Kinds
from pipecd.plugins.kubernetes.cluster.kubeconfig import connection_of
from pipecd.plugins.kubernetes.cluster.owned import delete_all, owned
from pipecd.plugins.kubernetes.manifest.key import DEFAULT_NAMESPACE
from pipecd.plugins.kubernetes.manifest.manifest import Manifest
from pipecd.plugins.kubernetes.manifest.marks import Owner, of_variant
from pipecd.plugins.kubernetes.render.load import Loader, Order
from pipecd.plugins.kubernetes.stages.waiting import NOT_WAITED_FOR, until_ready
from pipecd.plugins.kubernetes.target import KubernetesTarget
from pipecd.plugins.kubernetes.variant.workload import Variant as Naming
from pipecd.plugins.kubernetes.workshop import Workshop
from pipecd.sdk import Source, StageContext, UserMistake
from pipecd.sdk.config import Duration


@dataclass(frozen=True)
class Workbench:
    """One stage on one cluster."""

    stage: StageContext
    aim: Aim
    cluster: Cluster
    loader: Loader
    is_alone: bool = True

    @property
    def application(self) -> Application:
        """The application as it is on this cluster."""
        return self.aim.application

    def say(self, line: str) -> None:
        """Tells people what happens, and where when there are several clusters."""
        self.stage.log.info(line if self.is_alone else f"[{self.aim.target.name}] {line}")

    def running(self) -> Source:
        """Returns the source that runs now, refused on a first deployment."""
        if self.stage.running is None:
            raise UserMistake(
                "there is no running commit yet",
                hint="this stage needs a successful deployment before it",
            )
        return self.stage.running

    async def manifests(self, source: Source) -> list[Manifest]:
        """Returns the manifests of a source as they stand in Git."""
        name = self.stage.deployment.application_name
        found = await self.loader.load(
            Order(source, self.application.input, name, self.stage, self.aim.below)
        )
        if not found:
            raise UserMistake(
                f"there are no manifests in {source.config_filename}'s directory",
                hint="add some, or correct input.manifests",
            )
        self.say(f"Loaded {len(found)} manifests of commit {source.commit[:7]}")
        return found

    def naming(self, variant: Variant, suffix: str) -> Naming:
        """Returns how the objects of a variant are named and marked."""
        label = self.application.variant_label
        return Naming(label.key, label.value(variant), self.application.suffix(variant, suffix))

    async def apply(
        self,
        manifests: Sequence[Manifest],
        source: Source,
        variant: Variant,
        *,
        ready_within: Duration = NOT_WAITED_FOR,
    ) -> list[Manifest]:
        """Puts objects on the cluster with the marks of this application.

        Those that go elsewhere are left out. With a time, they are waited for.
        """
        label = self.application.variant_label
        owner = Owner(
            piped=self.stage.deployment.piped_id,
            application=self.stage.deployment.application_id,
            commit=source.commit,
            first_generation=self.application.is_first_generation,
        )
        marked = [
            of_variant(owner.marked(manifest), label.key, label.value(variant))
            for manifest in manifests
            if self.aim.takes(manifest)
        ]
        create = self.application.input.auto_create_namespace
        await apply_all(self.cluster, marked, self.say, create_namespaces=create)
        await until_ready(self.cluster, marked, ready_within, self.say)
        return marked

    async def live(self, variant: Variant | None = None, *, kind: str = "") -> list[Manifest]:
        """Returns the objects of this application on the cluster, or those of a variant."""
        label = self.application.variant_label
        marks = {label.key: label.value(variant)} if variant else {}
        return await owned(self.cluster, self.stage.deployment.application_id, marks, kind=kind)

    async def delete(self, manifests: Sequence[Manifest]) -> None:
        """Takes objects of this application off the cluster."""
        application = self.stage.deployment.application_id
        await delete_all(self.cluster, application, manifests, self.say)


@asynccontextmanager
async def open_workbench(
    stage: StageContext, aim: Aim, workshop: Workshop, *, is_alone: bool
) -> AsyncIterator[Workbench]:
    """Opens a deploy target for a stage; `is_alone` when it is the only one."""
    settings = aim.target.settings(KubernetesTarget)
    connection = connection_of(settings.master_url, settings.kube_config_path)
    namespace = aim.application.input.namespace or connection.namespace or DEFAULT_NAMESPACE
    async with open_client(connection, asked=workshop.figures.asked) as client:
        cluster = Cluster(client, Kinds(client), namespace)
        yield Workbench(stage, aim, cluster, workshop.loader, is_alone)
