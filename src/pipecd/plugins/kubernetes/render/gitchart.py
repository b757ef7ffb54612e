# SPDX-License-Identifier: Apache-2.0
"""Charts that are kept in a Git repository of their own."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from pipecd.plugins.kubernetes.application import HelmChart
from pipecd.plugins.kubernetes.target import ChartRepository
from pipecd.sdk import UserMistake
from pipecd.sdk.program import capture

_WITHIN = 300.0


async def fetched(
    chart: HelmChart, repositories: Iterable[ChartRepository], directory: Path
) -> Path:
    """Returns the directory of a chart at the ref that the application names.

    A commit is fetched once; a branch or no ref at all is looked at each time.
    """
    name = hashlib.sha256(f"{chart.git_remote}\0{chart.ref}".encode()).hexdigest()[:16]
    place = directory / name
    if not (_is_commit(chart.ref) and place.is_dir()):
        await _clone(chart, _environment(chart, repositories), place)
    found = (place / chart.path).resolve()
    if not found.is_relative_to(place.resolve()) or not found.is_dir():
        raise UserMistake(
            f"{chart.git_remote} has no directory {chart.path} at {chart.ref or 'HEAD'}"
        )
    return found


def _is_commit(ref: str) -> bool:
    return len(ref) == 40 and all(character in "0123456789abcdef" for character in ref)


async def _clone(chart: HelmChart, environment: dict[str, str], place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=".chart-") as temporary:
        made = Path(temporary) / "chart"
        for argv in (
            ["git", "clone", "--quiet", "--", chart.git_remote, str(made)],
            ["git", "-C", str(made), "checkout", "--quiet", chart.ref or "HEAD", "--"],
        ):
            answer = await capture(argv, cwd=place.parent, env=environment, at_most=_WITHIN)
            if answer.code != 0:
                said = answer.stderr.decode(errors="replace").strip()
                raise UserMistake(
                    f"the chart repository {chart.git_remote} cannot be read at "
                    f"{chart.ref or 'HEAD'}: {said}",
                    hint="correct helmChart.gitRemote and ref, or the key of the chart repository",
                )
        shutil.rmtree(place, ignore_errors=True)
        made.rename(place)


def _environment(chart: HelmChart, repositories: Iterable[ChartRepository]) -> dict[str, str]:
    keys = [r.ssh_key_file for r in repositories if r.git_remote == chart.git_remote]
    environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
    if keys and keys[0]:
        environment["GIT_SSH_COMMAND"] = f"ssh -i {keys[0]} -o IdentitiesOnly=yes"
    return environment
