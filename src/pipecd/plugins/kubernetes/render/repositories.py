# SPDX-License-Identifier: Apache-2.0
"""Tells Helm of the chart repositories and registries of the piped, when a chart first needs it."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pipecd.plugins.kubernetes.render.tool import Program
from pipecd.plugins.kubernetes.target import ChartRegistry, ChartRepository, ChartSources
from pipecd.sdk import UserMistake

_WITHIN = 120.0


@dataclass(frozen=True)
class Step:
    """One call of Helm; a password goes in by standard input, where no list of processes has it."""

    what: str
    arguments: Sequence[str]
    password: str = field(default="", repr=False)


def steps(charts: ChartSources) -> Iterator[Step]:
    """Yields what Helm has to be told."""
    repositories = [r for r in charts.chart_repositories if r.type == "HTTP"]
    for repository in repositories:
        yield _added(repository)
    if repositories:
        yield UPDATE
    for registry in charts.chart_registries:
        if registry.username and registry.password:
            yield _logged_in(registry)


UPDATE = Step("the chart repositories were not updated", ("repo", "update"))


def _added(repository: ChartRepository) -> Step:
    flags = ["--insecure-skip-tls-verify"] if repository.insecure else []
    if repository.username or repository.password:
        flags += ["--username", repository.username, "--password-stdin"]
    return Step(
        f"the chart repository {repository.name} at {repository.address} was not added",
        ("repo", "add", "--force-update", *flags, "--", repository.name, repository.address),
        repository.password,
    )


def _logged_in(registry: ChartRegistry) -> Step:
    address = registry.address.removeprefix("oci://")
    flags = ("--username", registry.username, "--password-stdin")
    return Step(
        f"the chart registry {address} refused the login",
        ("registry", "login", *flags, "--", address),
        registry.password,
    )


class Repositories:
    """Tells Helm once; what failed is tried again by the next chart."""

    def __init__(self, charts: ChartSources, environment: Mapping[str, str]) -> None:
        self._steps = tuple(steps(charts))
        self._environment = environment
        self._turn = asyncio.Lock()
        self._is_told = False

    async def ready(self, helm: Program) -> None:
        """Returns when Helm knows every repository and is logged in to every registry."""
        async with self._turn:
            if not self._is_told:
                for step in self._steps:
                    await self._call(helm, step)
                self._is_told = True

    async def update(self, helm: Program) -> None:
        """Fetches what the repositories have now."""
        async with self._turn:
            await self._call(helm, UPDATE)

    async def _call(self, helm: Program, step: Step) -> None:
        answer = await helm.run(
            step.arguments,
            cwd=Path("/"),
            env=self._environment,
            stdin=step.password.encode(),
            at_most=_WITHIN,
        )
        if answer.code != 0:
            said = answer.stderr.decode(errors="replace").strip()
            raise UserMistake(
                f"{step.what}: {said}",
                hint="correct chartRepositories and chartRegistries of the piped",
            )
