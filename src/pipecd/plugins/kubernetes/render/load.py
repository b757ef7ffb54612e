# SPDX-License-Identifier: Apache-2.0
"""Loads the manifests of an application, by the method that its directory and input ask for."""

import asyncio
import hashlib
import os
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from weakref import WeakValueDictionary

from pipecd.plugins.kubernetes.application import HelmChart, HelmOptions, ManifestInput
from pipecd.plugins.kubernetes.figures import ProgramEnded, uncounted
from pipecd.plugins.kubernetes.manifest.body import text_at, with_value
from pipecd.plugins.kubernetes.manifest.manifest import Manifest, read_manifests
from pipecd.plugins.kubernetes.manifest.pod import with_single_variables
from pipecd.plugins.kubernetes.render import helm, kustomize
from pipecd.plugins.kubernetes.render.gitchart import GitCharts, GitVariables
from pipecd.plugins.kubernetes.render.plain import read_files
from pipecd.plugins.kubernetes.render.repositories import Repositories
from pipecd.plugins.kubernetes.render.tool import Installer, Programs
from pipecd.plugins.kubernetes.target import ChartSources
from pipecd.sdk import Source, UserMistake

_REMEMBERED = 150
# What Helm says when it looks for something that may be in a newer index.
_STALE = "helm repo update"


class Loader:
    """Renders manifests and remembers them by everything that they are made from."""

    def __init__(
        self,
        charts: ChartSources,
        directory: Path,
        git: GitVariables,
        *,
        ended: ProgramEnded = uncounted,
    ) -> None:
        self._charts = charts
        self._git_charts = GitCharts(charts.chart_repositories, directory / "charts", git)
        self._environment = _environment(directory / "helm")
        self._repositories = Repositories(charts, self._environment)
        self._programs = Programs(ended)
        self._known: OrderedDict[str, list[Manifest]] = OrderedDict()
        self._flights: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def load(
        self,
        source: Source,
        wanted: ManifestInput,
        *,
        application: str,
        release: str,
        installer: Installer,
        below: str = "",
    ) -> list[Manifest]:
        """Returns the manifests of a commit, in the namespace of the application.

        `application` is its id, since two of them may share a name; `release` names it to Helm.
        `below` is a directory for Kustomize in the place of the application's own.
        """
        name = f"{application}\0{source.commit}\0{below}\0{wanted.model_dump_json()}"
        key = hashlib.sha256(name.encode()).hexdigest()
        # Several clusters, and several questions, ask for the same commit at the same time.
        async with self._flights.setdefault(key, asyncio.Lock()):
            if key not in self._known:
                place = _directory(source, below)
                self._known[key] = await self._render(place, source, wanted, release, installer)
                while len(self._known) > _REMEMBERED:
                    self._known.popitem(last=False)
        self._known.move_to_end(key)
        return list(self._known[key])

    async def _render(
        self,
        directory: Path,
        source: Source,
        wanted: ManifestInput,
        release: str,
        installer: Installer,
    ) -> list[Manifest]:
        if wanted.helm_chart is not None:
            chart = await self._chart(wanted.helm_chart)
            text = await self._helm(directory, chart, wanted, release, installer)
            manifests = read_manifests(text, file="helm template")
        elif kustomize.is_kustomized(directory):
            text = await self._kustomize(directory, wanted, installer)
            manifests = read_manifests(text, file="kustomize build")
        else:
            manifests = read_files(directory, wanted.manifests, source.config_filename)
        return [with_single_variables(_placed(m, wanted.namespace)) for m in manifests]

    async def _helm(
        self,
        directory: Path,
        chart: helm.Chart,
        wanted: ManifestInput,
        release: str,
        installer: Installer,
    ) -> str:
        program = await self._programs.find("helm", wanted.helm_version, installer)
        options = wanted.helm_options or HelmOptions()
        helm.check_files(directory, options)
        arguments = helm.arguments(chart, options, release=release, namespace=wanted.namespace)
        if chart.is_remote or helm.has_dependencies(directory / chart.reference):
            await self._repositories.ready(program)
        try:
            return await program.rendered(arguments, cwd=directory, env=self._environment)
        except UserMistake as e:
            # The version is newer than what Helm knows of the repository.
            if _STALE not in str(e):
                raise
        await self._repositories.update(program)
        return await program.rendered(arguments, cwd=directory, env=self._environment)

    async def _chart(self, chart: HelmChart) -> helm.Chart:
        repositories = self._charts.chart_repositories
        if chart.git_remote:
            return helm.Chart(str(await self._git_charts.fetched(chart)))
        if chart.repository:
            insecure = any(r.insecure for r in repositories if r.name == chart.repository)
            return helm.remote_chart(chart, insecure=insecure)
        return helm.local_chart(chart)

    async def _kustomize(self, directory: Path, wanted: ManifestInput, installer: Installer) -> str:
        program = await self._programs.find("kustomize", wanted.kustomize_version, installer)
        helm_path = None
        if "enable-helm" in wanted.kustomize_options:
            helm_program = await self._programs.find("helm", wanted.helm_version, installer)
            await self._repositories.ready(helm_program)
            helm_path = helm_program.path
        arguments = kustomize.arguments(
            wanted.kustomize_options, version=wanted.kustomize_version, helm=helm_path
        )
        return await program.rendered(arguments, cwd=directory, env=self._environment)


def _directory(source: Source, below: str) -> Path:
    place = source.application_directory / below
    if below and not kustomize.is_kustomized(place):
        raise UserMistake(f"{below} has no kustomization.yaml", hint="correct kustomizeDir")
    return place


def _environment(home: Path) -> Mapping[str, str]:
    """Returns the environment in which Helm keeps its repositories apart from the user's."""
    return {
        **os.environ,
        "HELM_CONFIG_HOME": str(home / "config"),
        "HELM_CACHE_HOME": str(home / "cache"),
        "HELM_DATA_HOME": str(home / "data"),
    }


def _placed(manifest: Manifest, namespace: str) -> Manifest:
    """Puts an object into the namespace that the application names for all of its objects."""
    if not namespace or text_at(manifest.body, "metadata", "namespace") == namespace:
        return manifest
    return manifest.with_body(with_value(manifest.body, ("metadata", "namespace"), namespace))
