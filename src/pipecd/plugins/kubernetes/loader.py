# SPDX-License-Identifier: Apache-2.0
"""Loads the manifests of an application: plain files, Kustomize or Helm, cached by content."""

import asyncio
import hashlib
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakValueDictionary

from pipecd.plugins.kubernetes import helm, kustomize
from pipecd.plugins.kubernetes.config import ChartSources, HelmChart, HelmOptions, ManifestInput
from pipecd.plugins.kubernetes.helm import GitChartCache, GitEnvironment, HelmRepositories
from pipecd.plugins.kubernetes.manifest import Manifest, read_manifests
from pipecd.plugins.kubernetes.metrics import RecordToolCall, not_recorded
from pipecd.plugins.kubernetes.render_inputs import (
    RenderInputs,
    digest,
    is_commit,
    is_pinned,
    merge_inputs,
)
from pipecd.plugins.kubernetes.tools import Installer, Toolbox
from pipecd.plugins.kubernetes.unstructured import text_at, with_value
from pipecd.plugins.kubernetes.workload import without_duplicate_env
from pipecd.sdk import Source, UserMistake
from pipecd.sdk.cache import LruCache
from pipecd.sdk.host import program_variables

# About 50 MB.
MAX_CACHED_OBJECTS = 5000
# A rendering that depends on the network is rendered again after this time.
_NETWORK_TTL_SECONDS = 3600.0
_MANIFEST_SUFFIXES = frozenset({".yaml", ".yml", ".json"})
_DEFAULT_CONFIG = ".pipe.yaml"
# Helm prints this when it misses something that a newer index of the repository may have.
_STALE_INDEX = "helm repo update"


@dataclass(frozen=True)
class RenderRequest:
    """What to render; `release` is the name of the application.

    Kustomize builds `kustomize_dir` below the application's directory if it is set.
    """

    source: Source
    input: ManifestInput
    release: str
    installer: Installer
    kustomize_dir: str = ""

    @property
    def directory(self) -> Path:
        """Where the tools run."""
        return self.source.application_directory / self.kustomize_dir


@dataclass(frozen=True)
class _Renderer:
    """How a request is rendered: with which tool, from which inputs."""

    tool: str
    inputs: Callable[[], RenderInputs]
    render: Callable[[], Awaitable[list[Manifest]]]


class ManifestLoader:
    """Renders manifests and caches them by the content of their inputs.

    The commit is no part of the cache key unless the manifests depend on the network.
    """

    def __init__(
        self,
        charts: ChartSources,
        directory: Path,
        git: GitEnvironment,
        *,
        record_call: RecordToolCall = not_recorded,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._charts = charts
        self._git_charts = GitChartCache(charts.chart_repositories, directory / "charts", git)
        self._environment = {**program_variables(git), **_helm_environment(directory / "helm")}
        self._repositories = HelmRepositories(charts, self._environment)
        self._tools = Toolbox(record_call)
        self._cache = LruCache[str, tuple[Manifest, ...]](
            MAX_CACHED_OBJECTS, size_of=len, clock=clock
        )
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def load(self, request: RenderRequest) -> list[Manifest]:
        """Returns the manifests of a commit, in the namespace of the application."""
        renderer = await self._renderer(request)
        key, _ = await asyncio.to_thread(_cache_key, request, renderer)
        # Several clusters and several calls request the same manifests at the same time.
        async with self._locks.setdefault(key, asyncio.Lock()):
            manifests = self._cache.get(key)
            if manifests is None:
                namespace = request.input.namespace
                manifests = tuple(
                    without_duplicate_env(_with_namespace(manifest, namespace))
                    for manifest in await renderer.render()
                )
                # A tool may have downloaded charts into the directory, where the next run finds
                # them.
                key_after, is_network = await asyncio.to_thread(_cache_key, request, renderer)
                ttl = _NETWORK_TTL_SECONDS if is_network else None
                for each in {key, key_after}:
                    self._cache.put(each, manifests, ttl=ttl)
        return list(manifests)

    async def _renderer(self, request: RenderRequest) -> _Renderer:
        directory = request.directory
        if request.input.helm_chart is not None:
            return await self._helm_renderer(request, request.input.helm_chart)
        if kustomize.is_kustomized(directory):
            return await self._kustomize_renderer(request)
        if request.kustomize_dir:
            raise UserMistake(
                f"{request.kustomize_dir} has no kustomization.yaml", hint="correct kustomizeDir"
            )
        names = request.input.manifests or manifest_files(directory, request.source.config_filename)

        async def render() -> list[Manifest]:
            return read_files(directory, names)

        return _Renderer(
            "", lambda: RenderInputs({name: directory / name for name in names}), render
        )

    async def _helm_renderer(self, request: RenderRequest, chart: HelmChart) -> _Renderer:
        directory, options = request.directory, request.input.helm_options or HelmOptions()
        helm.validate_files(directory, options)
        chart_inputs = await self._chart_inputs(chart, directory)

        def inputs() -> RenderInputs:
            return merge_inputs(helm.value_inputs(directory, options), chart_inputs())

        version = await self._tools.version("helm", request.input.helm_version)
        return _Renderer(
            f"helm {version}", inputs, lambda: self._render_helm(request, chart, options)
        )

    async def _chart_inputs(self, chart: HelmChart, directory: Path) -> Callable[[], RenderInputs]:
        if chart.git_remote and is_commit(chart.ref):
            async with self._git_charts.checkout(chart) as chart_directory:
                # The files of a commit never change, but its dependencies may.
                is_network = helm.chart_inputs(chart_directory).depends_on_network
                return lambda: RenderInputs({}, is_network)
        if chart.git_remote or chart.repository:
            is_network = not is_pinned(chart.version if chart.repository else "")
            return lambda: RenderInputs({}, is_network)
        return lambda: helm.chart_inputs(directory / chart.path)

    async def _render_helm(
        self, request: RenderRequest, chart: HelmChart, options: HelmOptions
    ) -> list[Manifest]:
        directory, namespace = request.directory, request.input.namespace
        tool = await self._tools.find("helm", request.input.helm_version, request.installer)
        async with self._chart_reference(chart) as reference:
            arguments = helm.template_arguments(
                reference, options, release=request.release, namespace=namespace
            )
            if reference.is_remote or helm.dependencies(directory / reference.reference):
                await self._repositories.configure(tool)
            try:
                text = await tool.render(arguments, cwd=directory, env=self._environment)
            except UserMistake as e:
                if _STALE_INDEX not in str(e):
                    raise
                await self._repositories.update(tool)
                text = await tool.render(arguments, cwd=directory, env=self._environment)
        return read_manifests(text, file="helm template")

    @asynccontextmanager
    async def _chart_reference(self, chart: HelmChart) -> AsyncIterator[helm.ChartReference]:
        if chart.git_remote:
            async with self._git_charts.checkout(chart) as directory:
                yield helm.ChartReference(str(directory))
        elif chart.repository:
            repositories = self._charts.chart_repositories
            insecure = any(r.insecure for r in repositories if r.name == chart.repository)
            yield helm.remote_chart(chart, insecure=insecure)
        else:
            yield helm.ChartReference(chart.path)

    async def _kustomize_renderer(self, request: RenderRequest) -> _Renderer:
        directory, options = request.directory, request.input.kustomize_options
        kustomize.validate_options(options)
        version = await self._tools.version("kustomize", request.input.kustomize_version)
        tool = f"kustomize {version}"
        if kustomize.uses_helm(options):
            tool += f" helm {await self._tools.version('helm', request.input.helm_version)}"
        return _Renderer(
            tool,
            lambda: kustomize.inputs(directory, options),
            lambda: self._render_kustomize(request),
        )

    async def _render_kustomize(self, request: RenderRequest) -> list[Manifest]:
        options, installer = request.input.kustomize_options, request.installer
        version = request.input.kustomize_version
        tool = await self._tools.find("kustomize", version, installer)
        helm_path = None
        if kustomize.uses_helm(options):
            helm_tool = await self._tools.find("helm", request.input.helm_version, installer)
            await self._repositories.configure(helm_tool)
            helm_path = helm_tool.path
        arguments = kustomize.build_arguments(options, version=version, helm=helm_path)
        text = await tool.render(arguments, cwd=request.directory, env=self._environment)
        return read_manifests(text, file="kustomize build")


def _cache_key(request: RenderRequest, renderer: _Renderer) -> tuple[str, bool]:
    """Returns the cache key of a request, and whether it depends on the network."""
    inputs, source = renderer.inputs(), request.source
    parts = (
        renderer.tool,
        request.release,
        request.input.model_dump_json(),
        digest(inputs, within=source.shared_config_directory.parent),
        source.commit if inputs.depends_on_network else "",
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest(), inputs.depends_on_network


def _helm_environment(home: Path) -> Mapping[str, str]:
    """Returns variables that keep Helm's repositories apart from those of the user."""
    return {
        "HELM_CONFIG_HOME": str(home / "config"),
        "HELM_CACHE_HOME": str(home / "cache"),
        "HELM_DATA_HOME": str(home / "data"),
        # Kustomize lets a repository choose the other directories, and plugins are programs.
        "HELM_PLUGINS": os.environ.get("HELM_PLUGINS", str(home / "plugins")),
    }


def _with_namespace(manifest: Manifest, namespace: str) -> Manifest:
    if not namespace or text_at(manifest.body, "metadata", "namespace") == namespace:
        return manifest
    return manifest.with_body(with_value(manifest.body, ("metadata", "namespace"), namespace))


def manifest_files(directory: Path, config_filename: str) -> list[str]:
    """Returns the manifest files of a directory, without configuration files of PipeCD."""
    return sorted(
        path.name
        for path in directory.iterdir()
        if path.suffix in _MANIFEST_SUFFIXES
        and path.name not in (config_filename, _DEFAULT_CONFIG)
        and not path.name.endswith(".pipecd.yaml")
        and path.is_file()
    )


def read_files(directory: Path, names: Sequence[str]) -> list[Manifest]:
    """Reads the manifests of files, in the order of the files."""
    manifests: list[Manifest] = []
    for name in names:
        try:
            text = (directory / name).read_text()
        except FileNotFoundError as e:
            raise UserMistake(
                f"the manifest {name} does not exist", hint="correct input.manifests"
            ) from e
        except (OSError, UnicodeDecodeError) as e:
            raise UserMistake(f"the manifest {name} cannot be read: {e}") from e
        manifests += read_manifests(text, file=name)
    return manifests
