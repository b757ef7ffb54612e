# SPDX-License-Identifier: Apache-2.0
"""Helm: the arguments of `helm template`, chart repositories, and charts in Git repositories."""

import asyncio
import hashlib
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias
from weakref import WeakValueDictionary

from pipecd.plugins.kubernetes.config import (
    ChartRepository,
    ChartSources,
    HelmChart,
    HelmOptions,
)
from pipecd.plugins.kubernetes.helm_values import files_of, is_url, set_flags
from pipecd.plugins.kubernetes.render_inputs import RenderInputs, is_commit, is_pinned
from pipecd.plugins.kubernetes.tools import RenderTool
from pipecd.sdk import UserMistake
from pipecd.sdk.files import contained_path, read_contained, validate_tree
from pipecd.sdk.git import is_network_remote, redact
from pipecd.sdk.program import Captured, capture
from pipecd.sdk.unstructured import list_at, text_at
from pipecd.sdk.yaml import read_documents

GitEnvironment: TypeAlias = Callable[[str], Mapping[str, str]]
"""Returns the environment for a git command that reads a remote."""

_CLONE_TIMEOUT = 300.0
_REPOSITORY_TIMEOUT = 120.0
_REPOSITORY_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class ChartReference:
    """A chart as `helm template` takes it: a path, or a name in a repository with its version."""

    reference: str
    version: str = ""
    insecure: bool = False
    is_remote: bool = False
    has_dependencies: bool = False


def template_arguments(
    chart: ChartReference,
    options: HelmOptions,
    *,
    release: str,
    namespace: str,
    value_files: Mapping[str, str],
) -> list[str]:
    """Returns the arguments of `helm template`, without hooks and with CRDs.

    `value_files` are the local paths of the value files.
    """
    flags: list[str] = ["--no-hooks", "--include-crds"]
    if chart.version:
        flags += [f"--version={chart.version}"]
    if not chart.is_remote:
        flags += ["--dependency-update"]
    if chart.insecure:
        flags += ["--insecure-skip-tls-verify"]
    if namespace:
        flags += [f"--namespace={namespace}"]
    flags += set_flags(options, value_files)
    for version in options.api_versions:
        flags += ["--api-versions", version]
    if options.kube_version:
        flags += ["--kube-version", options.kube_version]
    return ["template", *flags, "--", options.release_name or release, chart.reference]


def dependencies(chart: Path, *, root: Path) -> list[Any]:
    """Returns the dependencies that a chart directory inside of `root` declares."""
    declared: list[Any] = []
    for name in ("Chart.yaml", "requirements.yaml"):
        if (chart / name).is_file():
            text = read_contained(root, chart / name).decode(errors="replace")
            for document in read_documents(text, file=name):
                declared += list_at(document.value, "dependencies")
    return declared


def value_inputs(directory: Path, options: HelmOptions) -> RenderInputs:
    """Returns the value files as inputs of a rendering."""
    files = files_of(options)
    paths = {file: directory / file for file in files if not is_url(file)}
    return RenderInputs(paths, depends_on_network=any(map(is_url, files)))


def chart_inputs(chart: Path, *, root: Path) -> RenderInputs:
    """Returns a chart directory as an input, with the directories of its dependencies.

    All of them, and whatever their links lead to, are inside of `root`.
    """
    queue = [("chart:", chart.resolve())]
    paths, depends_on_network = dict(queue), False
    while queue:
        name, directory = queue.pop()
        for dependency in dependencies(directory, root=root):
            path = text_at(dependency, "repository").removeprefix("file://")
            if path == text_at(dependency, "repository"):
                is_range = bool(path) and not is_pinned(text_at(dependency, "version"))
                depends_on_network |= is_range
                continue
            dependency_name = f"{name}/{path}"
            try:
                resolved = contained_path(root, directory / path)
            except UserMistake as e:
                raise UserMistake(
                    f"the dependency file://{path} of a chart: {e.message}",
                    hint="a chart may depend on directories of its own repository only",
                ) from e
            if resolved not in paths.values():
                paths[dependency_name] = resolved
                queue.append((dependency_name, resolved))
    return RenderInputs(paths, depends_on_network)


def remote_chart(chart: HelmChart, directory: Path, *, insecure: bool) -> ChartReference:
    """Returns a chart of a repository that Helm knows by name, or of an OCI registry.

    Helm would rather render a local chart of the same path, as seen from `directory`.
    """
    repository = chart.repository.rstrip("/")
    if not repository.startswith("oci://"):
        names = (repository, *chart.name.split("/"))
        if not all(_REPOSITORY_NAME.fullmatch(name) for name in names):
            raise UserMistake(
                f"{repository}/{chart.name} is not a chart of a chart repository",
                hint="write the name of a chart repository of the piped, or oci:// and an address",
            )
        if os.path.lexists(directory / repository / chart.name):
            raise UserMistake(
                f"{repository}/{chart.name} is a path of the application as well as a chart",
                hint="rename the directory, or use helmChart.path for the chart in it",
            )
    return ChartReference(
        f"{repository}/{chart.name}",
        version=chart.version,
        insecure=insecure,
        is_remote=True,
        has_dependencies=True,
    )


def local_chart(chart: Path, *, root: Path, start: Path | None = None) -> ChartReference:
    """Returns a chart in a directory or archive inside of `root`, as a path seen from `start`.

    A text that names no file would be an address to Helm.
    """
    path = contained_path(root, chart)
    if not path.exists():
        raise UserMistake(f"there is no chart {chart.name}", hint="correct helmChart.path")
    reference = f"./{os.path.relpath(path, start.resolve())}" if start else str(path)
    return ChartReference(reference, has_dependencies=bool(dependencies(path, root=root)))


@dataclass(frozen=True)
class GitChart:
    """A chart directory in the clone of a Git repository."""

    directory: Path
    clone: Path


def validate_chart(chart: Path, root: Path) -> None:
    """Refuses a chart that reads files outside of `root`, itself or by a dependency.

    Helm follows links, and shows what it reads by `.Files.Get`.
    """
    for name, path in chart_inputs(chart, root=root).paths.items():
        try:
            validate_tree(root, path)
        except UserMistake as e:
            raise UserMistake(f"the chart {name.removeprefix('chart:') or path.name}: {e}") from e


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
    async def checkout(self, chart: HelmChart) -> AsyncIterator[GitChart]:
        """Yields a chart at its ref; it stays as it is inside of the block."""
        self._validate_remote(chart.git_remote)
        name = hashlib.sha256(f"{chart.git_remote}\0{chart.ref}".encode()).hexdigest()[:16]
        clone = self._directory / name
        async with self._locks.setdefault(name, asyncio.Lock()):
            if not (is_commit(chart.ref) and clone.is_dir()):
                await self._clone(chart, clone)
            directory = (clone / chart.path).resolve()
            if not directory.is_relative_to(clone.resolve()) or not directory.is_dir():
                raise UserMistake(
                    f"{redact(chart.git_remote)} has no directory {chart.path} at "
                    f"{chart.ref or 'HEAD'}",
                    hint="correct helmChart.path, which is below the root of that repository",
                )
            await asyncio.to_thread(validate_chart, directory, clone)
            yield GitChart(directory, clone)

    def _validate_remote(self, remote: str) -> None:
        """Refuses directories of the host and transports that start programs.

        The operator may configure any remote as a chart repository.
        """
        is_configured = any(remote == each.git_remote for each in self._repositories)
        if not is_configured and not is_network_remote(remote):
            raise UserMistake(
                f"the chart repository {redact(remote)} cannot be read: it is no https or ssh URL",
                hint="correct helmChart.gitRemote, or add it to chartRepositories of the piped",
            )

    async def _clone(self, chart: HelmChart, destination: Path) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self._directory, prefix=".chart-") as temporary:
            clone = Path(temporary) / "chart"
            await self._git_output(
                chart, "clone", "--quiet", "--no-checkout", "--", chart.git_remote, str(clone)
            )
            commit = await self._resolve(chart, clone)
            await self._git_output(chart, "-C", str(clone), "checkout", "--quiet", commit, "--")
            shutil.rmtree(destination, ignore_errors=True)
            clone.rename(destination)

    async def _resolve(self, chart: HelmChart, clone: Path) -> str:
        """Returns the hash of the commit that the ref names: a tag, a branch or a commit."""
        ref = chart.ref or "HEAD"
        for revision in (ref, f"origin/{ref}"):
            verify = ("rev-parse", "--verify", "--quiet", "--end-of-options")
            result = await self._run_git(chart, "-C", str(clone), *verify, f"{revision}^{{commit}}")
            if result.code == 0:
                return result.stdout.decode().strip()
        raise UserMistake(
            f"the chart repository {redact(chart.git_remote)} cannot be read at {ref}: "
            "there is no such branch, tag or commit",
            hint="correct helmChart.ref",
        )

    async def _git_output(self, chart: HelmChart, *arguments: str) -> None:
        result = await self._run_git(chart, *arguments)
        if result.code != 0:
            # The first line is that of git; a server can fill the others with anything. Only a
            # warning of ssh about another host key begins with a frame.
            stderr = result.stderr.decode(errors="replace").strip()
            is_host_key = "Host key verification failed" in stderr
            cause = "Host key verification failed" if is_host_key else stderr.partition("\n")[0]
            raise UserMistake(
                f"the chart repository {redact(chart.git_remote)} cannot be read: {redact(cause)}",
                hint="correct helmChart.gitRemote, or the key of the repository",
            )

    async def _run_git(self, chart: HelmChart, *arguments: str) -> Captured:
        return await capture(
            ["git", *arguments],
            cwd=self._directory,
            env=self._environment(chart.git_remote),
            at_most=_CLONE_TIMEOUT,
        )

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
