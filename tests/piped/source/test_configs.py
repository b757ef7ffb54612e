# SPDX-License-Identifier: Apache-2.0
"""Configuration files are parsed once, and those that no recent commit has are not kept."""

import weakref
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pipecd.config.catalog import load_catalog
from pipecd.git.credentials import GitCredentials
from pipecd.git.mirror import Mirror, Repository, open_mirrors
from pipecd.piped.source.configs import ApplicationConfigs
from servers.origin import Origin

PATH = "web/app.pipecd.yaml"


def config(name: str) -> str:
    return f"apiVersion: pipecd.dev/v1beta1\nkind: Application\nspec:\n  name: {name}\n"


@pytest.fixture
async def mirror(origin: Origin, tmp_path: Path) -> AsyncIterator[Mirror]:
    repository = Repository("site", origin.remote, "main")
    async with open_mirrors(
        [repository], directory=tmp_path / "m", credentials=GitCredentials()
    ) as mirrors:
        yield mirrors.of("site")


async def test_files_of_old_commits_are_not_kept(mirror: Mirror, origin: Origin) -> None:
    commits = origin.import_commits([{PATH: config(f"web-{number}")} for number in range(200)])
    await mirror.update()
    configs = ApplicationConfigs(load_catalog())
    read = [
        weakref.ref(await configs.file(mirror.objects, commit, PATH))
        for commit in commits
        # A deployment reads its file at the commit that runs too.
        for _ in range(2)
    ]
    kept = {id(file) for reference in read if (file := reference()) is not None}
    assert 3 <= len(kept) <= 50
    assert read[-1]() is await configs.file(mirror.objects, commits[-1], PATH)


async def test_the_files_of_many_applications_are_parsed_once_however_many_commits_have_them(
    mirror: Mirror, origin: Origin
) -> None:
    paths = [f"app-{number}/app.pipecd.yaml" for number in range(300)]
    unchanged = {path: config(path.partition("/")[0]) for path in paths}
    commits = origin.import_commits([unchanged, *({"README": str(number)} for number in range(5))])
    await mirror.update()
    configs = ApplicationConfigs(load_catalog())
    first = await configs.at(mirror.objects, commits[0], paths)
    for commit in commits[1:]:
        again = await configs.at(mirror.objects, commit, paths)
        assert all(again[path] is first[path] for path in paths)
