# SPDX-License-Identifier: Apache-2.0
"""Helm: the arguments of `helm template`, chart repositories, and charts in Git repositories."""

import asyncio
import hashlib
import shlex
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

from pipecd.plugins.kubernetes.config import (
    ChartRepository,
    ChartSources,
    HelmChart,
    HelmOptions,
)
from pipecd.plugins.kubernetes.render_inputs import RenderInputs, is_commit, is_pinned
from pipecd.plugins.kubernetes.tools import RenderTool
from pipecd.plugins.kubernetes.unstructured import list_at, text_at
from pipecd.sdk import UserMistake
from pipecd.sdk.program import capture
from pipecd.sdk.yaml import read_documents

GitEnvironment: TypeAlias = Callable[[str], Mapping[str, str]]
"""Returns the environment for a git command that reads a remote."""

_CLONE_TIMEOUT = 300.0
_REPOSITORY_TIMEOUT = 120.0


@dataclass(frozen=True)
class ChartReference:
    """A chart as `helm template` takes it: a path, or a name in a repository with its version."""

    reference: str
    version: str = ""
    insecure: bool = False
    is_remote: bool = False


def template_arguments(
    chart: ChartReference, options: HelmOptions, *, release: str, namespace: str
) -> list[str]:
    """Returns the arguments of `helm template`, without hooks and with CRDs."""
    flags: list[str] = ["--no-hooks", "--include-crds"]
    if chart.version:
        flags += [f"--version={chart.version}"]
    if not chart.is_remote:
        flags += ["--dependency-update"]
    if chart.insecure:
        flags += ["--insecure-skip-tls-verify"]
    if namespace:
        flags += [f"--namespace={namespace}"]
    for key, value in options.set_values.items():
        flags += ["--set", f"{key}={value}"]
    for file in options.value_files:
        flags += ["-f", file]
    for key, file in options.set_files.items():
        flags += ["--set-file", f"{key}={file}"]
    for version in options.api_versions:
        flags += ["--api-versions", version]
    if options.kube_version:
        flags += ["--kube-version", options.kube_version]
    return ["template", *flags, "--", options.release_name or release, chart.reference]


def validate_files(directory: Path, options: HelmOptions) -> None:
    """Refuses files outside of the application's directory.

    Helm takes a comma as the end of a path, so a list in one entry would pass unchecked.
    """
    for text in (*options.value_files, *options.set_files.values(), *options.set_files):
        if set(text) & set(',"') or (text in options.set_files and "=" in text):
            raise UserMistake(
                f"{text}: commas, quotes and = are not allowed in the name of a file or its key",
                hint="write one entry for each file under helmOptions",
            )
    for file in (*options.value_files, *options.set_files.values()):
        scheme = urlsplit(file).scheme.lower()
        if scheme in ("http", "https"):
            continue
        if scheme:
            raise UserMistake(f"{file}: a value file is a path, or an http or https address")
        if not (directory / file).resolve().is_relative_to(directory.resolve()):
            raise UserMistake(
                f"{file} lies outside of the application's directory",
                hint="move the file beside the application's configuration",
            )


def dependencies(chart: Path) -> list[Any]:
    """Returns the dependencies that a chart directory declares."""
    declared: list[Any] = []
    for name in ("Chart.yaml", "requirements.yaml"):
        if (chart / name).is_file():
            text = (chart / name).read_text(errors="replace")
            for document in read_documents(text, file=name):
                declared += list_at(document.value, "dependencies")
    return declared


def value_inputs(directory: Path, options: HelmOptions) -> RenderInputs:
    """Returns the value files as inputs of a rendering."""
    files = (*options.value_files, *options.set_files.values())
    paths = [file for file in files if not urlsplit(file).scheme]
    has_urls = len(paths) < len(files)
    return RenderInputs({file: directory / file for file in paths}, depends_on_network=has_urls)


def chart_inputs(chart: Path) -> RenderInputs:
    """Returns a chart directory as an input, with the directories of its dependencies."""
    queue = [("chart:", chart.resolve())]
    paths, depends_on_network = dict(queue), False
    while queue:
        name, directory = queue.pop()
        for dependency in dependencies(directory):
            path = text_at(dependency, "repository").removeprefix("file://")
            if path == text_at(dependency, "repository"):
                is_range = bool(path) and not is_pinned(text_at(dependency, "version"))
                depends_on_network |= is_range
                continue
            dependency_name, resolved = f"{name}/{path}", (directory / path).resolve()
            if resolved not in paths.values():
                paths[dependency_name] = resolved
                queue.append((dependency_name, resolved))
    return RenderInputs(paths, depends_on_network)


def remote_chart(chart: HelmChart, *, insecure: bool) -> ChartReference:
    """Returns a chart of a repository that Helm knows by name, or of an OCI registry."""
    repository = chart.repository.rstrip("/")
    return ChartReference(
        f"{repository}/{chart.name}", version=chart.version, insecure=insecure, is_remote=True
    )


class GitChartCache:
    """Clones charts of Git repositories, with the SSH key of their entry or as piped does.

    The clone of a commit is reused; a branch, or no ref, is cloned each time.
    """

    def __init__(
        self, repositories: Sequence[ChartRepository], directory: Path, git: GitEnvironment
    ) -> None:
        self._repositories, self._directory, self._git = repositories, directory, git
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def checkout(self, chart: HelmChart) -> AsyncIterator[Path]:
        """Yields the directory of a chart at its ref; it stays as it is inside of the block."""
        if chart.ref.startswith("-"):
            raise UserMistake(
                f"helmChart.ref must not start with -: {chart.ref}",
                hint="write a branch, a tag or a commit",
            )
        name = hashlib.sha256(f"{chart.git_remote}\0{chart.ref}".encode()).hexdigest()[:16]
        clone = self._directory / name
        async with self._locks.setdefault(name, asyncio.Lock()):
            if not (is_commit(chart.ref) and clone.is_dir()):
                await self._clone(chart, clone)
            directory = (clone / chart.path).resolve()
            if not directory.is_relative_to(clone.resolve()) or not directory.is_dir():
                raise UserMistake(
                    f"{chart.git_remote} has no directory {chart.path} at {chart.ref or 'HEAD'}",
                    hint="correct helmChart.path, which is below the root of that repository",
                )
            yield directory

    async def _clone(self, chart: HelmChart, destination: Path) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self._directory, prefix=".chart-") as temporary:
            clone = Path(temporary) / "chart"
            for argv in (
                ["git", "clone", "--quiet", "--", chart.git_remote, str(clone)],
                ["git", "-C", str(clone), "checkout", "--quiet", chart.ref or "HEAD", "--"],
            ):
                result = await capture(
                    argv,
                    cwd=self._directory,
                    env=self._environment(chart.git_remote),
                    at_most=_CLONE_TIMEOUT,
                )
                if result.code != 0:
                    stderr = result.stderr.decode(errors="replace").strip()
                    raise UserMistake(
                        f"the chart repository {chart.git_remote} cannot be read at "
                        f"{chart.ref or 'HEAD'}: {stderr}",
                        hint="correct helmChart.gitRemote and ref, or the key of the repository",
                    )
            shutil.rmtree(destination, ignore_errors=True)
            clone.rename(destination)

    def _environment(self, remote: str) -> dict[str, str]:
        environment = dict(self._git(remote))
        keys = [r.ssh_key_file for r in self._repositories if r.git_remote == remote]
        if keys and keys[0]:
            # The settings of piped check the key of the host; upstream trusts any host here.
            ssh = environment.get("GIT_SSH_COMMAND") or "ssh -o StrictHostKeyChecking=accept-new"
            # A connection that another key has authenticated must not be shared.
            own = ("-i", keys[0], "-o", "IdentitiesOnly=yes", "-o", "ControlPath=none")
            environment.pop("GIT_SSH", None)
            environment["GIT_SSH_COMMAND"] = f"{ssh} {shlex.join(own)}"
        return environment


@dataclass(frozen=True)
class HelmCommand:
    """A command that configures Helm; a password is passed on standard input, not in argv."""

    failure: str
    arguments: Sequence[str]
    password: str = field(default="", repr=False)


UPDATE = HelmCommand("the chart repositories were not updated", ("repo", "update"))


def setup_commands(charts: ChartSources) -> Iterator[HelmCommand]:
    """Yields the commands that add the chart repositories and log in to the registries."""
    repositories = [r for r in charts.chart_repositories if r.type == "HTTP"]
    for repository in repositories:
        flags = ["--insecure-skip-tls-verify"] if repository.insecure else []
        if repository.username or repository.password:
            flags += ["--username", repository.username, "--password-stdin"]
        yield HelmCommand(
            f"the chart repository {repository.name} at {repository.address} was not added",
            ("repo", "add", "--force-update", *flags, "--", repository.name, repository.address),
            repository.password,
        )
    if repositories:
        yield UPDATE
    for registry in charts.chart_registries:
        if registry.username and registry.password:
            address = registry.address.removeprefix("oci://")
            flags = ["--username", registry.username, "--password-stdin"]
            yield HelmCommand(
                f"the chart registry {address} refused the login",
                ("registry", "login", *flags, "--", address),
                registry.password,
            )


class HelmRepositories:
    """Configures Helm once, when a chart first needs a repository; a failure is retried."""

    def __init__(self, charts: ChartSources, environment: Mapping[str, str]) -> None:
        self._commands = tuple(setup_commands(charts))
        self._environment = environment
        self._lock = asyncio.Lock()
        self._is_configured = False

    async def configure(self, helm: RenderTool) -> None:
        """Returns when Helm knows every repository and is logged in to every registry."""
        async with self._lock:
            if not self._is_configured:
                for command in self._commands:
                    await self._run(helm, command)
                self._is_configured = True

    async def update(self, helm: RenderTool) -> None:
        """Downloads the current index of every repository."""
        async with self._lock:
            await self._run(helm, UPDATE)

    async def _run(self, helm: RenderTool, command: HelmCommand) -> None:
        result = await helm.run(
            command.arguments,
            cwd=Path("/"),
            env=self._environment,
            stdin=command.password.encode(),
            at_most=_REPOSITORY_TIMEOUT,
        )
        if result.code != 0:
            stderr = result.stderr.decode(errors="replace").strip()
            raise UserMistake(
                f"{command.failure}: {stderr}",
                hint="correct chartRepositories and chartRegistries of the piped",
            )
