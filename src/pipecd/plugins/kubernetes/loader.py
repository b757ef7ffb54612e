# SPDX-License-Identifier: Apache-2.0
"""Loads the manifests of an application: plain files, Kustomize or Helm, cached by content."""

import asyncio
import hashlib
import json
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from weakref import WeakValueDictionary

from pipecd.plugins.kubernetes import helm, kustomize
from pipecd.plugins.kubernetes.argument_guard import WORKING_COPY_VARIABLE
from pipecd.plugins.kubernetes.config import ChartSources, HelmChart, HelmOptions, ManifestInput
from pipecd.plugins.kubernetes.guarded_programs import GuardedPrograms
from pipecd.plugins.kubernetes.helm import GitChartCache, GitEnvironment, HelmRepositories
from pipecd.plugins.kubernetes.helm_values import local_paths, validate_files, validate_values
from pipecd.plugins.kubernetes.manifest import Manifest, manifests_of, read_manifests
from pipecd.plugins.kubernetes.metrics import RecordToolCall, not_recorded
from pipecd.plugins.kubernetes.render_inputs import (
    RenderInputs,
    digest,
    is_commit,
    is_pinned,
    merge_inputs,
)
from pipecd.plugins.kubernetes.tools import Toolbox
from pipecd.plugins.kubernetes.workload import without_duplicate_env
from pipecd.sdk import Source, UserMistake
from pipecd.sdk.cache import LruCache
from pipecd.sdk.config import RenderingSpec
from pipecd.sdk.files import contained_path, read_contained
from pipecd.sdk.host import WithTools, rendering_variables
from pipecd.sdk.unstructured import with_value
from pipecd.sdk.workers import WorkerPool, worker_limits
from pipecd.sdk.yaml import plain_documents

# Parsing a larger text would hold up the event loop.
_LARGE_TEXT = 256 * 1024
# As JSON they take a tenth of the memory of parsed objects; many have 1 to 2 KB.
MAX_CACHED_BYTES = 20 * 1024 * 1024
# A rendering that depends on the network is rendered again after this time.
_NETWORK_TTL_SECONDS = 3600.0
_MANIFEST_SUFFIXES = frozenset({".yaml", ".yml", ".json"})
_DEFAULT_CONFIG = ".pipe.yaml"
# Helm prints this if a newer index of the repository may have the missing chart.
_STALE_INDEX = "helm repo update"


@dataclass(frozen=True)
class RenderRequest:
    """What to render; `release` is the name of the application.

    Kustomize builds `kustomize_dir` below the application's directory if it is set.
    """

    source: Source
    input: ManifestInput
    release: str
    installer: WithTools
    kustomize_dir: str = ""

    @property
    def directory(self) -> Path:
        """Where the tools run."""
        return self.source.application_directory / self.kustomize_dir


class ManifestRenderer(Protocol):
    """Renders the manifests of one request."""

    async def prepare(self) -> str:
        """Validates the request and returns the tools with their versions."""
        ...

    def inputs(self) -> RenderInputs:
        """Returns the files that are read; called in a thread."""
        ...

    async def render(self) -> list[Manifest]:
        """Renders the manifests."""
        ...


class PlainFiles:
    """Manifest files in the application's directory."""

    def __init__(self, request: RenderRequest) -> None:
        if request.kustomize_dir:
            raise UserMistake(
                f"{request.kustomize_dir} has no kustomization.yaml", hint="correct kustomizeDir"
            )
        self._root, self._directory = request.source.working_copy, request.directory
        self._names = request.input.manifests or manifest_files(
            request.directory, request.source.config_filename
        )

    async def prepare(self) -> str:
        return ""

    def inputs(self) -> RenderInputs:
        return RenderInputs({name: self._directory / name for name in self._names})

    async def render(self) -> list[Manifest]:
        return await asyncio.to_thread(read_files, self._root, self._directory, self._names)


@dataclass(frozen=True)
class RenderTools:
    """The tools of a plugin, and the chart repositories that it has configured for Helm."""

    toolbox: Toolbox
    environment: Mapping[str, str]
    charts: ChartSources
    repositories: HelmRepositories
    git_charts: GitChartCache
    rendering: RenderingSpec
    guarded: GuardedPrograms
    workers: WorkerPool


class HelmRenderer:
    """Renders a chart with `helm template`."""

    def __init__(self, request: RenderRequest, chart: HelmChart, tools: RenderTools) -> None:
        self._request, self._chart, self._tools = request, chart, tools
        self._options = request.input.helm_options or HelmOptions()
        self._depends_on_network = False

    async def prepare(self) -> str:
        chart, hosts = self._chart, self._tools.rendering.value_file_hosts
        validate_values(self._options)
        await asyncio.to_thread(validate_files, self._request.directory, self._options, hosts)
        if chart.git_remote and is_commit(chart.ref):
            # The files of a commit never change, but its dependencies may.
            async with self._tools.git_charts.checkout(chart) as cloned:
                inputs = helm.chart_inputs(cloned.directory, root=cloned.clone)
                self._depends_on_network = inputs.depends_on_network
        elif chart.git_remote or chart.repository:
            self._depends_on_network = not (chart.repository and is_pinned(chart.version))
        return f"helm {await self._tools.toolbox.version('helm', self._request.input.helm_version)}"

    def inputs(self) -> RenderInputs:
        directory, chart = self._request.directory, self._chart
        values = helm.value_inputs(directory, self._options)
        if chart.git_remote or chart.repository:
            return merge_inputs(values, RenderInputs({}, self._depends_on_network))
        root = self._request.source.working_copy
        return merge_inputs(values, helm.chart_inputs(directory / chart.path, root=root))

    async def render(self) -> list[Manifest]:
        request, tools = self._request, self._tools
        version = request.input.helm_version
        tool = await tools.toolbox.find("helm", version, request.installer)
        values = local_paths(request.directory, self._options, tools.rendering.value_file_hosts)
        async with self._chart_reference() as reference, values as value_files:
            arguments = helm.template_arguments(
                reference,
                self._options,
                release=request.release,
                namespace=request.input.namespace,
                value_files=value_files,
            )
            if reference.has_dependencies:
                await tools.repositories.configure(tool)
            try:
                text = await tool.render(arguments, cwd=request.directory, env=tools.environment)
            except UserMistake as e:
                if _STALE_INDEX not in str(e):
                    raise
                await tools.repositories.update(tool)
                text = await tool.render(arguments, cwd=request.directory, env=tools.environment)
        # Above the manifests Helm prints which dependencies it has downloaded.
        _, separator, manifests = f"\n{text}".partition("\n---\n")
        return await _parsed(manifests if separator else text, "helm template", tools.workers)

    @asynccontextmanager
    async def _chart_reference(self) -> AsyncIterator[helm.ChartReference]:
        chart = self._chart
        if chart.git_remote:
            async with self._tools.git_charts.checkout(chart) as cloned:
                yield helm.local_chart(cloned.directory, root=cloned.clone)
        elif chart.repository:
            repositories = self._tools.charts.chart_repositories
            insecure = any(r.insecure for r in repositories if r.name == chart.repository)
            yield helm.remote_chart(chart, self._request.directory, insecure=insecure)
        else:
            request = self._request
            directory = request.directory / chart.path
            yield helm.local_chart(
                directory, root=request.source.working_copy, start=request.directory
            )


class KustomizeRenderer:
    """Renders a directory with `kustomize build`."""

    def __init__(self, request: RenderRequest, tools: RenderTools) -> None:
        self._request, self._input, self._tools = request, request.input, tools
        self._uses_helm = kustomize.uses_helm(request.input.kustomize_options)

    async def prepare(self) -> str:
        kustomize.validate_options(
            self._input.kustomize_options, self._tools.rendering.kustomize_options
        )
        toolbox = self._tools.toolbox
        versions = f"kustomize {await toolbox.version('kustomize', self._input.kustomize_version)}"
        if self._uses_helm:
            versions += f" helm {await toolbox.version('helm', self._input.helm_version)}"
        return versions

    def inputs(self) -> RenderInputs:
        return kustomize.inputs(
            self._request.directory,
            self._input.kustomize_options,
            root=self._request.source.working_copy,
            allowed_by_operator=self._tools.rendering.kustomize_options,
            hosts=self._tools.rendering.value_file_hosts,
        )

    async def render(self) -> list[Manifest]:
        request, tools, version = self._request, self._tools, self._input.kustomize_version
        tool = await tools.toolbox.find("kustomize", version, request.installer)
        helm_path = None
        if self._uses_helm:
            helm_tool = await tools.toolbox.find(
                "helm", self._input.helm_version, request.installer
            )
            await tools.repositories.configure(helm_tool)
            helm_path = helm_tool.path
        programs = await asyncio.to_thread(tools.guarded.directory, helm_path)
        arguments = kustomize.build_arguments(
            self._input.kustomize_options,
            version=version,
            helm=programs / "helm" if self._uses_helm else None,
        )
        environment = {
            **tools.environment,
            "PATH": f"{programs}{os.pathsep}{tools.environment.get('PATH', os.defpath)}",
            WORKING_COPY_VARIABLE: str(request.source.working_copy),
        }
        text = await tool.render(arguments, cwd=request.directory, env=environment)
        return await _parsed(text, "kustomize build", tools.workers)


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
        rendering: RenderingSpec | None = None,
        workers: WorkerPool | None = None,
        record_call: RecordToolCall = not_recorded,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        home, rendering = directory / "helm", rendering or RenderingSpec()
        environment = {
            **rendering_variables(git, rendering),
            # The chart repositories of the piped are separate from those of its user.
            "HELM_CONFIG_HOME": str(home / "config"),
            "HELM_CACHE_HOME": str(home / "cache"),
            "HELM_DATA_HOME": str(home / "data"),
            # Kustomize lets a repository choose the directories above. Plugins are programs, and
            # so are the credential helpers that the configuration of registries names.
            "HELM_PLUGINS": os.environ.get("HELM_PLUGINS", str(home / "plugins")),
            "HELM_REGISTRY_CONFIG": str(home / "config" / "registry" / "config.json"),
            "HELM_REPOSITORY_CONFIG": str(home / "config" / "repositories.yaml"),
            "HELM_REPOSITORY_CACHE": str(home / "cache" / "repository"),
        }
        self._tools = RenderTools(
            Toolbox(record_call, rendering),
            environment,
            charts,
            HelmRepositories(charts, environment),
            GitChartCache(charts.chart_repositories, directory / "charts", git),
            rendering,
            GuardedPrograms(directory / "programs"),
            workers or WorkerPool(worker_limits(rendering)),
        )
        self._cache = LruCache[str, bytes](MAX_CACHED_BYTES, size_of=len, clock=clock)
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def load(self, request: RenderRequest) -> list[Manifest]:
        """Returns the manifests of a commit, in the namespace of the application."""
        _validate_directory(request)
        renderer: ManifestRenderer
        if request.input.helm_chart is not None:
            renderer = HelmRenderer(request, request.input.helm_chart, self._tools)
        elif kustomize.is_kustomized(request.directory):
            renderer = KustomizeRenderer(request, self._tools)
        else:
            renderer = PlainFiles(request)
        versions = await renderer.prepare()
        key, _ = await asyncio.to_thread(_cache_key, request, renderer, versions)
        # Several clusters and several calls request the same manifests at the same time.
        async with self._locks.setdefault(key, asyncio.Lock()):
            cached = self._cache.get(key)
            if cached is None:
                # Content that exceeded a limit is refused for a day.
                with self._tools.workers.broken.guard(key):
                    rendered = await renderer.render()
                if namespace := request.input.namespace:
                    path = ("metadata", "namespace")
                    rendered = [m.with_body(with_value(m.body, path, namespace)) for m in rendered]
                cached = _to_json(map(without_duplicate_env, rendered))
                # A tool may have downloaded charts into the directory, which the next run reads.
                key_after, is_network = await asyncio.to_thread(
                    _cache_key, request, renderer, versions
                )
                ttl = _NETWORK_TTL_SECONDS if is_network else None
                for each in {key, key_after}:
                    self._cache.put(each, cached, ttl=ttl)
        return _of_json(cached)


def _to_json(manifests: Iterable[Manifest]) -> bytes:
    plain = [(manifest.origin, manifest.body) for manifest in manifests]
    return json.dumps(plain, separators=(",", ":")).encode()


def _of_json(text: bytes) -> list[Manifest]:
    return [Manifest(body, origin) for origin, body in json.loads(text)]


async def _parsed(text: str, file: str, workers: WorkerPool) -> list[Manifest]:
    """Returns the objects in the output of a program."""
    if len(text) <= _LARGE_TEXT:
        return read_manifests(text, file=file)
    return manifests_of(await workers.run(plain_documents, text, file), file=file)


def _cache_key(
    request: RenderRequest, renderer: ManifestRenderer, versions: str
) -> tuple[str, bool]:
    """Returns the cache key of a request, and whether it depends on the network."""
    inputs, source = renderer.inputs(), request.source
    parts = (
        versions,
        request.release,
        request.input.model_dump_json(),
        digest(inputs, within=source.working_copy),
        source.commit if inputs.depends_on_network else "",
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest(), inputs.depends_on_network


def _validate_directory(request: RenderRequest) -> None:
    try:
        contained_path(request.source.working_copy, request.directory)
    except UserMistake as e:
        raise UserMistake(
            f"{request.kustomize_dir} cannot be rendered: {e.message}", hint="correct kustomizeDir"
        ) from e


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


def read_files(root: Path, directory: Path, names: Sequence[str]) -> list[Manifest]:
    """Reads the manifests of files, in the order of the files, which are inside of `root`."""
    manifests: list[Manifest] = []
    for name in names:
        try:
            text = read_contained(root, directory / name).decode()
        except UserMistake as e:
            raise UserMistake(
                f"the manifest {name} cannot be read: {e.message}", hint="correct input.manifests"
            ) from e
        except UnicodeDecodeError as e:
            raise UserMistake(f"the manifest {name} is not UTF-8") from e
        manifests += read_manifests(text, file=name)
    return manifests
