# SPDX-License-Identifier: Apache-2.0
"""Loads the manifests of an application, by the method that its directory and input ask for."""

import asyncio
import hashlib
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakValueDictionary

from pipecd.plugins.kubernetes.application import HelmChart, HelmOptions, ManifestInput
from pipecd.plugins.kubernetes.figures import ProgramEnded, uncounted
from pipecd.plugins.kubernetes.manifest.body import text_at, with_value
from pipecd.plugins.kubernetes.manifest.manifest import Manifest, read_manifests
from pipecd.plugins.kubernetes.manifest.pod import with_single_variables
from pipecd.plugins.kubernetes.render import helm, kustomize
from pipecd.plugins.kubernetes.render.gitchart import GitCharts, GitVariables
from pipecd.plugins.kubernetes.render.inputs import Inputs, digest, is_commit, is_pinned, merged
from pipecd.plugins.kubernetes.render.plain import manifest_files, read_files
from pipecd.plugins.kubernetes.render.repositories import Repositories
from pipecd.plugins.kubernetes.render.tool import Installer, Programs
from pipecd.plugins.kubernetes.target import ChartSources
from pipecd.sdk import Source, UserMistake
from pipecd.sdk.cache import LruCache
from pipecd.sdk.host import program_variables

# About as many rendered objects fit into 50 MB.
MAX_CACHED_OBJECTS = 5000
# A rendering that depends on the network is rendered again after this time.
_NETWORK_TTL_SECONDS = 3600.0
# What Helm says when it looks for something that may be in a newer index.
_STALE = "helm repo update"


@dataclass(frozen=True)
class Order:
    """What is to be rendered; `release` names the application to Helm.

    `below` is a directory for Kustomize in the place of the application's own.
    """

    source: Source
    wanted: ManifestInput
    release: str
    installer: Installer
    below: str = ""

    @property
    def directory(self) -> Path:
        """Where the programs run."""
        return self.source.application_directory / self.below


@dataclass(frozen=True)
class _Method:
    """One way to render: with which program, from what, and the work itself."""

    program: str
    inputs: Callable[[], Inputs]
    render: Callable[[], Awaitable[list[Manifest]]]


class Loader:
    """Renders manifests and remembers them by everything that they are made from.

    The commit is no part of that, unless they depend on what the network has.
    """

    def __init__(
        self,
        charts: ChartSources,
        directory: Path,
        git: GitVariables,
        *,
        ended: ProgramEnded = uncounted,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._charts = charts
        self._git_charts = GitCharts(charts.chart_repositories, directory / "charts", git)
        self._environment = {**program_variables(git), **_helm_variables(directory / "helm")}
        self._repositories = Repositories(charts, self._environment)
        self._programs = Programs(ended)
        self._renderings = LruCache[str, tuple[Manifest, ...]](
            MAX_CACHED_OBJECTS, size_of=len, clock=clock
        )
        self._flights: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def load(self, order: Order) -> list[Manifest]:
        """Returns the manifests of a commit, in the namespace of the application."""
        method = await self._method(order)
        key, _ = await asyncio.to_thread(_key, order, method)
        # Several clusters, and several questions, ask for the same at the same time.
        async with self._flights.setdefault(key, asyncio.Lock()):
            found = self._renderings.get(key)
            if found is None:
                manifests = await method.render()
                namespace = order.wanted.namespace
                found = tuple(with_single_variables(_placed(m, namespace)) for m in manifests)
                # A program may have put charts beside the files, where they are the next time.
                after, is_open = await asyncio.to_thread(_key, order, method)
                for each in {key, after}:
                    ttl = _NETWORK_TTL_SECONDS if is_open else None
                    self._renderings.put(each, found, ttl=ttl)
        return list(found)

    async def _method(self, order: Order) -> _Method:
        directory, wanted = order.directory, order.wanted
        if wanted.helm_chart is not None:
            return await self._helm(order, wanted.helm_chart)
        if kustomize.is_kustomized(directory):
            return await self._kustomize(order)
        if order.below:
            raise UserMistake(
                f"{order.below} has no kustomization.yaml", hint="correct kustomizeDir"
            )
        names = wanted.manifests or manifest_files(directory, order.source.config_filename)

        async def render() -> list[Manifest]:
            return read_files(directory, names)

        return _Method("", lambda: Inputs({name: directory / name for name in names}), render)

    async def _helm(self, order: Order, chart: HelmChart) -> _Method:
        directory, options = order.directory, order.wanted.helm_options or HelmOptions()
        helm.check_files(directory, options)
        of_chart = await self._chart_inputs(chart, directory)

        def inputs() -> Inputs:
            return merged(helm.value_inputs(directory, options), of_chart())

        version = await self._programs.version("helm", order.wanted.helm_version)
        return _Method(f"helm {version}", inputs, lambda: self._by_helm(order, chart, options))

    async def _chart_inputs(self, chart: HelmChart, directory: Path) -> Callable[[], Inputs]:
        if chart.git_remote and is_commit(chart.ref):
            async with self._git_charts.fetched(chart) as place:
                # The files are those of the commit, what they depend on need not be.
                is_open = helm.chart_inputs(place).is_open
                return lambda: Inputs({}, is_open)
        if chart.git_remote or chart.repository:
            is_open = not is_pinned(chart.version if chart.repository else "")
            return lambda: Inputs({}, is_open)
        return lambda: helm.chart_inputs(directory / chart.path)

    async def _by_helm(
        self, order: Order, wanted: HelmChart, options: HelmOptions
    ) -> list[Manifest]:
        directory, namespace = order.directory, order.wanted.namespace
        program = await self._programs.find("helm", order.wanted.helm_version, order.installer)
        async with self._chart(wanted) as chart:
            arguments = helm.arguments(chart, options, release=order.release, namespace=namespace)
            if chart.is_remote or helm.has_dependencies(directory / chart.reference):
                await self._repositories.ready(program)
            try:
                text = await program.rendered(arguments, cwd=directory, env=self._environment)
            except UserMistake as e:
                # The version is newer than what Helm knows of the repository.
                if _STALE not in str(e):
                    raise
                await self._repositories.update(program)
                text = await program.rendered(arguments, cwd=directory, env=self._environment)
        return read_manifests(text, file="helm template")

    @asynccontextmanager
    async def _chart(self, chart: HelmChart) -> AsyncIterator[helm.Chart]:
        if chart.git_remote:
            async with self._git_charts.fetched(chart) as place:
                yield helm.Chart(str(place))
        elif chart.repository:
            repositories = self._charts.chart_repositories
            insecure = any(r.insecure for r in repositories if r.name == chart.repository)
            yield helm.remote_chart(chart, insecure=insecure)
        else:
            yield helm.local_chart(chart)

    async def _kustomize(self, order: Order) -> _Method:
        directory, wanted = order.directory, order.wanted
        options, version = wanted.kustomize_options, self._programs.version
        program = f"kustomize {await version('kustomize', wanted.kustomize_version)}"
        if kustomize.uses_helm(options):
            program += f" helm {await version('helm', wanted.helm_version)}"
        return _Method(
            program,
            lambda: kustomize.inputs(directory, options),
            lambda: self._by_kustomize(order),
        )

    async def _by_kustomize(self, order: Order) -> list[Manifest]:
        wanted, installer = order.wanted, order.installer
        program = await self._programs.find("kustomize", wanted.kustomize_version, installer)
        helm_path = None
        if kustomize.uses_helm(wanted.kustomize_options):
            helm_program = await self._programs.find("helm", wanted.helm_version, installer)
            await self._repositories.ready(helm_program)
            helm_path = helm_program.path
        arguments = kustomize.arguments(
            wanted.kustomize_options, version=wanted.kustomize_version, helm=helm_path
        )
        text = await program.rendered(arguments, cwd=order.directory, env=self._environment)
        return read_manifests(text, file="kustomize build")


def _key(order: Order, method: _Method) -> tuple[str, bool]:
    """Returns what a rendering is found by, and whether it depends on the network."""
    inputs, source = method.inputs(), order.source
    parts = (
        method.program,
        order.release,
        order.wanted.model_dump_json(),
        digest(inputs, within=source.shared_config_directory.parent),
        source.commit if inputs.is_open else "",
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest(), inputs.is_open


def _helm_variables(home: Path) -> Mapping[str, str]:
    """Returns variables by which Helm keeps its repositories apart from the user's."""
    return {
        "HELM_CONFIG_HOME": str(home / "config"),
        "HELM_CACHE_HOME": str(home / "cache"),
        "HELM_DATA_HOME": str(home / "data"),
        # Kustomize lets a repository choose the other directories, and plugins are programs.
        "HELM_PLUGINS": os.environ.get("HELM_PLUGINS", str(home / "plugins")),
    }


def _placed(manifest: Manifest, namespace: str) -> Manifest:
    """Puts an object into the namespace that the application names for all of its objects."""
    if not namespace or text_at(manifest.body, "metadata", "namespace") == namespace:
        return manifest
    return manifest.with_body(with_value(manifest.body, ("metadata", "namespace"), namespace))
