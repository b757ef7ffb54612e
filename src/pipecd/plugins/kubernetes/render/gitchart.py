# SPDX-License-Identifier: Apache-2.0
"""Charts that are kept in a Git repository of their own."""

import asyncio
import hashlib
import shlex
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeAlias
from weakref import WeakValueDictionary

from pipecd.plugins.kubernetes.application import HelmChart
from pipecd.plugins.kubernetes.render.inputs import is_commit
from pipecd.plugins.kubernetes.target import ChartRepository
from pipecd.sdk import UserMistake
from pipecd.sdk.program import capture

GitVariables: TypeAlias = Callable[[str], Mapping[str, str]]
"""Returns the environment of a git program that reads a remote."""

_WITHIN = 300.0


class GitCharts:
    """Charts of Git repositories, read with the key of their repository or as piped reads its own.

    A commit is fetched once; a branch or no ref at all is looked at each time.
    """

    def __init__(
        self, repositories: Sequence[ChartRepository], directory: Path, git: GitVariables
    ) -> None:
        self._repositories, self._directory, self._git = repositories, directory, git
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def fetched(self, chart: HelmChart) -> AsyncIterator[Path]:
        """Gives the directory of a chart at the ref that the application names.

        That of a branch is replaced by nobody until it is given back, that of a commit never.
        """
        if chart.ref.startswith("-"):
            raise UserMistake(
                f"helmChart.ref must not start with -: {chart.ref}",
                hint="write a branch, a tag or a commit",
            )
        name = hashlib.sha256(f"{chart.git_remote}\0{chart.ref}".encode()).hexdigest()[:16]
        place = self._directory / name
        async with self._turns.setdefault(name, asyncio.Lock()):
            if not (is_commit(chart.ref) and place.is_dir()):
                await self._clone(chart, place)
            found = (place / chart.path).resolve()
            if not found.is_relative_to(place.resolve()) or not found.is_dir():
                raise UserMistake(
                    f"{chart.git_remote} has no directory {chart.path} at {chart.ref or 'HEAD'}",
                    hint="correct helmChart.path, which is below the root of that repository",
                )
            yield found

    async def _clone(self, chart: HelmChart, place: Path) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self._directory, prefix=".chart-") as temporary:
            made = Path(temporary) / "chart"
            for argv in (
                ["git", "clone", "--quiet", "--", chart.git_remote, str(made)],
                ["git", "-C", str(made), "checkout", "--quiet", chart.ref or "HEAD", "--"],
            ):
                environment = self._environment(chart.git_remote)
                answer = await capture(argv, cwd=place.parent, env=environment, at_most=_WITHIN)
                if answer.code != 0:
                    said = answer.stderr.decode(errors="replace").strip()
                    raise UserMistake(
                        f"the chart repository {chart.git_remote} cannot be read at "
                        f"{chart.ref or 'HEAD'}: {said}",
                        hint="correct helmChart.gitRemote and ref, or the key of the repository",
                    )
            shutil.rmtree(place, ignore_errors=True)
            made.rename(place)

    def _environment(self, remote: str) -> dict[str, str]:
        environment = dict(self._git(remote))
        keys = [r.ssh_key_file for r in self._repositories if r.git_remote == remote]
        if keys and keys[0]:
            # Upstream trusts the hosts of chart repositories, and takes no other settings.
            ssh = ("ssh", "-i", keys[0], "-F", "/dev/null", "-o", "IdentitiesOnly=yes")
            trust = ("-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null")
            environment.pop("GIT_SSH", None)
            environment["GIT_SSH_COMMAND"] = shlex.join((*ssh, *trust))
        return environment
