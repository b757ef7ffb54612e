# SPDX-License-Identifier: Apache-2.0
"""A working copy contains the paths that its application requires, and little else."""

import asyncio
import subprocess
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecd.config.catalog import load_catalog
from pipecd.git.credentials import GitCredentials
from pipecd.git.mirror import Repository, open_mirrors
from pipecd.piped.source.configs import ApplicationConfigs
from pipecd.piped.source.render import TemplateRenderer
from pipecd.piped.source.required_paths import (
    NO_REFERENCES,
    ParentReferences,
    link_references,
    literal_prefix,
    parent_references,
)
from pipecd.piped.source.sources import Source, Sources
from pipecd.program.workers import WorkerPool
from pipecd.proto.model.common_pb2 import ApplicationGitPath, ApplicationGitRepository
from servers.origin import NewOrigin, Origin

CONFIG = "apiVersion: pipecd.dev/v1beta1\nkind: Application\nspec:\n  name: web\n"
OTHERS = {"apps/other/huge.yaml": "x", "docs/a.md": "x", "lib/log.sh": "log", "base/b.yaml": "b"}

Sourced = Callable[..., AbstractAsyncContextManager[Sources]]


@pytest.fixture
def sourced(origin: Origin, tmp_path: Path, workers: WorkerPool) -> Sourced:
    @asynccontextmanager
    async def opened() -> AsyncGenerator[Sources]:
        repository = Repository("site", origin.remote, "main")
        async with open_mirrors(
            [repository], directory=tmp_path / "workspace" / "git", credentials=GitCredentials()
        ) as mirrors:
            yield Sources(
                mirrors,
                ApplicationConfigs(load_catalog()),
                project="shop",
                renderer=TemplateRenderer(workers),
            )

    return opened


async def at(sources: Sources, commit: str, into: Path, path: str = "apps/web") -> Source:
    repo = ApplicationGitRepository(id="site", remote="", branch="main")
    git_path = ApplicationGitPath(repo=repo, path=path, config_filename="app.pipecd.yaml")
    return await sources.at(git_path, commit, into=into)


def names(directory: Path) -> set[str]:
    return {
        str(file.relative_to(directory))
        for file in directory.rglob("*")
        if ".git" not in file.parts and (file.is_file() or file.is_symlink())
    }


def app(files: dict[str, Any], config: str = CONFIG) -> dict[str, Any]:
    return {
        "apps/web/app.pipecd.yaml": config,
        **{f"apps/web/{name}": content for name, content in files.items()},
    }


OWN = {"apps/web/app.pipecd.yaml"}


@pytest.mark.parametrize(
    ("files", "config", "expected"),
    [
        pytest.param({}, CONFIG, set(), id="its own directory"),
        pytest.param(
            {"deep/er/x.yaml": "a"}, CONFIG, {"apps/web/deep/er/x.yaml"}, id="all that is below"
        ),
        pytest.param(
            {"kustomization.yaml": "resources: [../../base]"},
            CONFIG,
            {"apps/web/kustomization.yaml", "base/b.yaml"},
            id="a base beside",
        ),
        pytest.param(
            {"README.md": "cd ../.. first"}, CONFIG, {"apps/web/README.md"}, id="not prose"
        ),
        pytest.param(
            {"run.sh": "../../lib/log.sh"},
            CONFIG,
            {"apps/web/run.sh", "lib/log.sh"},
            id="one file beside",
        ),
        pytest.param(
            {"run.sh": "../../li$REST/log.sh '../../do cs/a.md'"},
            CONFIG,
            {"apps/web/run.sh", "lib/log.sh", "docs/a.md"},
            id="whatever begins with an incomplete name",
        ),
        pytest.param(
            {"k.yaml": "../none ../../none/x"},
            CONFIG,
            {"apps/web/k.yaml"},
            id="no missing paths",
        ),
        pytest.param(
            {},
            CONFIG + "  trigger: {onCommit: {paths: ['docs/**']}}\n",
            {"docs/a.md"},
            id="paths of its triggers",
        ),
        pytest.param(
            {},
            CONFIG + "  attachment: {sources: {n: ../../docs/a.md}, targets: [app.pipecd.yaml]}\n",
            {"docs/a.md"},
            id="attachments of its configuration",
        ),
    ],
)
async def test_a_working_copy_contains(
    origin: Origin,
    sourced: Sourced,
    tmp_path: Path,
    files: dict[str, Any],
    config: str,
    expected: set[str],
) -> None:
    commit = origin.commit({**OTHERS, **app(files, config)})
    async with sourced() as sources:
        source = await at(sources, commit, tmp_path / "w")
    assert names(source.directory) == OWN | expected


async def test_references_are_followed_from_file_to_file(
    origin: Origin, sourced: Sourced, tmp_path: Path
) -> None:
    files = app({"kustomization.yaml": "- ../../overlays/dev"})
    files |= {"overlays/dev/kustomization.yaml": "- ../../base", "overlays/prod/x": "x"}
    commit = origin.commit({**OTHERS, **files})
    async with sourced() as sources:
        source = await at(sources, commit, tmp_path / "w")
    expected = {"apps/web/kustomization.yaml", "overlays/dev/kustomization.yaml", "base/b.yaml"}
    assert names(source.directory) == OWN | expected


async def test_files_of_parent_directories_and_the_shared_configuration_are_included(
    origin: Origin, sourced: Sourced, tmp_path: Path
) -> None:
    above = {".sops.yaml": "a", "apps/defaults.yaml": "a", ".pipe/analysis.yaml": "cd .."}
    commit = origin.commit({**OTHERS, **above, **app({})})
    async with sourced() as sources:
        source = await at(sources, commit, tmp_path / "w")
    assert names(source.directory) == OWN | set(above)
    assert (source.shared_config_directory / "analysis.yaml").exists()


async def test_the_target_of_a_symbolic_link_is_included(
    origin: Origin, sourced: Sourced, tmp_path: Path
) -> None:
    origin.commit({**OTHERS, **app({})})
    (origin.path / "apps/web/base").symlink_to("../../base")
    commit = origin.commit()
    async with sourced() as sources:
        source = await at(sources, commit, tmp_path / "w")
    assert (source.application_directory / "base" / "b.yaml").read_text() == "b"


@pytest.mark.parametrize(
    "files",
    [
        pytest.param({"run.sh": "cd ../.. && make"}, id="a script that climbs"),
        pytest.param({"run.sh": 'cat "$(dirname "$PWD")/other/x"'}, id="a script that computes"),
        pytest.param({"x": "../../apps"}, id="a directory that contains it"),
    ],
)
async def test_an_unbounded_reference_requires_the_whole_repository(
    origin: Origin, sourced: Sourced, tmp_path: Path, files: dict[str, Any]
) -> None:
    commit = origin.commit({**OTHERS, **app(files)})
    async with sourced() as sources:
        source = await at(sources, commit, tmp_path / "w")
    assert names(source.directory) >= set(OTHERS) | OWN


async def test_an_application_at_the_root_gets_the_whole_repository(
    origin: Origin, sourced: Sourced, tmp_path: Path
) -> None:
    commit = origin.commit({**OTHERS, "app.pipecd.yaml": CONFIG})
    async with sourced() as sources:
        for path in ("", "."):
            source = await at(sources, commit, tmp_path / "w", path)
            assert names(source.directory) >= {*OTHERS, "app.pipecd.yaml"}


async def test_whole_commits_share_files_and_applications_own_theirs(
    origin: Origin, sourced: Sourced, tmp_path: Path
) -> None:
    first = origin.commit({**OTHERS, **app({"run.sh": "cd .."})})
    second = origin.commit({"base/b.yaml": "changed", "docs/a.md": None})
    async with sourced() as sources:
        one = (await at(sources, first, tmp_path / "one")).directory
        two = (await at(sources, second, tmp_path / "two")).directory
        assert (one / "lib/log.sh").stat().st_ino == (two / "lib/log.sh").stat().st_ino
        own = "apps/web/run.sh"
        assert (one / own).stat().st_ino != (two / own).stat().st_ino
        assert (one / "base/b.yaml").read_text() == "b"
        assert (two / "base/b.yaml").read_text() == "changed"
        assert (one / "docs/a.md").exists()
        assert not (two / "docs/a.md").exists()


async def test_writes_of_a_stage_reach_no_other_working_copy(
    origin: Origin, sourced: Sourced, tmp_path: Path
) -> None:
    commit = origin.commit({**OTHERS, **app({"run.sh": "cd ..", "x.yaml": "as in Git"})})
    async with sourced() as sources:
        one = await at(sources, commit, tmp_path / "one")
        (one.application_directory / "x.yaml").write_text("spoilt")
        (one.application_directory / "new").write_text("new")
        # Even a shared file is repaired before the next working copy is created.
        (one.directory / "lib/log.sh").write_text("spoilt as well")
        two = await at(sources, commit, tmp_path / "two")
    assert (two.application_directory / "x.yaml").read_text() == "as in Git"
    assert not (two.application_directory / "new").exists()
    assert (two.directory / "lib/log.sh").read_text() == "log"


async def test_many_working_copies_at_once(
    origin: Origin, sourced: Sourced, tmp_path: Path
) -> None:
    apps = {f"apps/a{i}/app.pipecd.yaml": CONFIG for i in range(20)}
    scripts = {f"apps/a{i}/run.sh": "cd .." for i in range(0, 20, 5)}
    commit = origin.commit({**OTHERS, **apps, **scripts})
    async with sourced() as sources:
        copies = await asyncio.gather(
            *(at(sources, commit, tmp_path / f"w{i}", f"apps/a{i}") for i in range(20))
        )
    sizes = [len(names(source.directory)) for source in copies]
    assert sizes == [28 if i % 5 == 0 else 1 for i in range(20)]


async def test_leftovers_of_a_killed_piped_are_removed(
    origin: Origin, sourced: Sourced, tmp_path: Path
) -> None:
    commit = origin.commit({**OTHERS, **app({"run.sh": "cd .."})})
    async with sourced() as sources:
        await at(sources, commit, tmp_path / "w")
    whole = tmp_path / "workspace" / "git" / "whole"
    assert any(whole.iterdir())
    async with sourced():
        assert not whole.exists()


async def test_git_commands_of_a_stage_see_the_history(
    origin: Origin, sourced: Sourced, tmp_path: Path
) -> None:
    first = origin.commit(app({"x": "1"}))
    second = origin.commit(app({"x": "2"}), "second")
    async with sourced() as sources:
        source = await at(sources, second, tmp_path / "w")
    where = source.application_directory
    assert git(where, "log", "-2", "--format=%H") == [second, first]
    assert git(where, "diff", "--name-only", "HEAD~1", "HEAD") == ["apps/web/x"]


def git(directory: Path, *arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=directory, check=True, capture_output=True)
    return done.stdout.decode().split()


@pytest.mark.parametrize(
    "script", [pytest.param("../../vendor/lib/x", id="named"), pytest.param("cd ..", id="climbing")]
)
async def test_a_referenced_submodule_is_included(
    origin: Origin, new_origin: NewOrigin, sourced: Sourced, tmp_path: Path, script: str
) -> None:
    library = new_origin("library")
    pinned = library.commit({"lib/x": "1"})
    origin.git("config", "-f", ".gitmodules", "submodule.vendor.path", "vendor")
    origin.git("config", "-f", ".gitmodules", "submodule.vendor.url", "../library")
    origin.commit({**OTHERS, **app({"run.sh": script})})
    origin.git("update-index", "--add", "--cacheinfo", f"160000,{pinned},vendor")
    origin.git("commit", "-q", "-m", "submodule")
    async with sourced() as sources:
        source = await at(sources, origin.git("rev-parse", "HEAD"), tmp_path / "w")
    assert (source.directory / "vendor" / "lib" / "x").read_text() == "1"


async def test_old_whole_commits_are_evicted(
    origin: Origin, sourced: Sourced, tmp_path: Path
) -> None:
    commits = [origin.commit({**OTHERS, **app({"run.sh": f"cd .. # {i}"})}) for i in range(7)]
    async with sourced() as sources:
        for commit in commits:
            await at(sources, commit, tmp_path / "w")
        source = await at(sources, commits[0], tmp_path / "w")
        assert (source.application_directory / "run.sh").read_text() == "cd .. # 0"
        assert cached_commits(tmp_path) == {*commits[4:], commits[0]}


def cached_commits(tmp_path: Path) -> set[str]:
    return {path.name for path in tmp_path.glob("workspace/git/whole/*/*") if path.is_dir()}


async def test_file_names_that_are_not_utf8_are_written_unchanged(
    origin: Origin, sourced: Sourced, tmp_path: Path
) -> None:
    odd = b"apps/web/caf\xe9 \xff.yaml"
    origin.commit(app({}))
    (Path(str(origin.path)) / "apps/web").mkdir(exist_ok=True)
    with open(bytes(origin.path) + b"/" + odd, "wb") as file:  # noqa: ASYNC230, PTH123
        file.write(b"odd")
    commit = origin.commit()
    async with sourced() as sources:
        source = await at(sources, commit, tmp_path / "w")
    files = [
        bytes(each.name, "utf-8", "surrogateescape")
        for each in source.application_directory.iterdir()
    ]
    assert b"caf\xe9 \xff.yaml" in files


@pytest.mark.parametrize(
    ("text", "paths", "is_unbounded"),
    [
        pytest.param("resources:\n- ../../base\n", {"base"}, False, id="a base of Kustomize"),
        pytest.param('source = "../../modules/vpc"', {"modules/vpc"}, False, id="a module"),
        pytest.param("valueFiles: [../common.yaml]", {"common.yaml"}, False, id="values of Helm"),
        pytest.param('repository: "file://../../charts/x"', {"charts/x"}, False, id="a chart"),
        pytest.param(". ../../lib/log.sh && log", {"lib/log.sh"}, False, id="a script"),
        pytest.param('"$DIR/../lib/$NAME.sh"', {"lib"}, False, id="up to a computed part"),
        pytest.param("cat ../conf/*.yaml", {"conf"}, False, id="up to a pattern"),
        pytest.param("../lib-$ENV/x", {"lib-"}, False, id="the beginning of a name"),
        pytest.param("a/../../b/./c", {"b/c"}, False, id="ways there and back"),
        pytest.param("x: ../a/../b", {"b"}, False, id="a path that goes up and down"),
        pytest.param("--from=../a:../b", {"a", "b"}, False, id="several paths in one argument"),
        pytest.param("cd ..", set(), True, id="a directory above"),
        pytest.param("cd ../..; make", set(), True, id="two directories above"),
        pytest.param("cat ../$NAME", set(), True, id="a name that is computed"),
        pytest.param("include { path = find_in_parent_folders() }", set(), True, id="Terragrunt"),
        pytest.param('cd "$(git rev-parse --show-toplevel)"', set(), True, id="the root by git"),
        pytest.param('cd "$(dirname "$PWD")"', set(), True, id="the directory above, computed"),
        pytest.param(
            "Path(__file__).parents[2]", set(), True, id="Python that leaves its directory"
        ),
        pytest.param('. "$(dirname "$0")/log.sh"', set(), False, id="a script beside"),
        pytest.param("Path(__file__).parent / 'x'", set(), False, id="Python that stays"),
        pytest.param("for i in {1..3}; do :; done", set(), False, id="a range"),
        pytest.param(
            "and so on... git log main..next", set(), False, id="dots that are not a path"
        ),
        pytest.param("version: 1.2..3", set(), False, id="dots in a number"),
        pytest.param("", set(), False, id="nothing"),
    ],
)
def test_references(text: str, paths: set[str], is_unbounded: bool) -> None:
    references = parent_references(text.encode())
    assert references.is_unbounded is is_unbounded
    if not is_unbounded:
        assert references.paths == paths


def test_a_binary_file_has_no_references() -> None:
    assert parent_references(b"\x7fELF\0../lib/x") == NO_REFERENCES


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        pytest.param("here/file", NO_REFERENCES, id="inside"),
        pytest.param("/etc/passwd", NO_REFERENCES, id="this machine"),
        pytest.param("../shared/x", ParentReferences(frozenset({"shared/x"})), id="beside"),
        pytest.param("a/../../x", ParentReferences(frozenset({"x"})), id="a detour"),
        pytest.param("..", ParentReferences(is_unbounded=True), id="above"),
    ],
)
def test_link_references(target: str, expected: ParentReferences) -> None:
    assert link_references(target) == expected


path_names = st.from_regex(r"[a-z0-9_][a-z0-9_.-]{0,8}[a-z0-9_]", fullmatch=True)


@given(
    ups=st.integers(1, 4),
    below=st.lists(path_names, min_size=1, max_size=4),
    delimiters=st.sampled_from(['"{}"', "'{}'", " {} ", "[{}]", "- {}\n", "={};", "\n{}"]),
)
def test_a_reference_is_found_between_any_delimiters(
    ups: int, below: list[str], delimiters: str
) -> None:
    path = "../" * ups + "/".join(below)
    assert "/".join(below) in parent_references(delimiters.format(path).encode()).paths


@given(st.binary(max_size=200))
def test_references_in_any_bytes_are_relative_paths(content: bytes) -> None:
    for path in parent_references(content).paths:
        assert path
        assert ".." not in path.split("/")
        assert not path.startswith("/")


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        pytest.param("lib/go", "lib/go", id="a path"),
        pytest.param("lib/**/*.go", "lib", id="a glob"),
        pytest.param("^lib/go/.*$", "lib/go", id="a regular expression"),
        pytest.param("/lib/", "lib", id="with slashes around it"),
        pytest.param("*.yaml", "", id="anywhere"),
        pytest.param("../x", "", id="outside"),
        pytest.param("", "", id="nothing"),
    ],
)
def test_literal_prefix(pattern: str, expected: str) -> None:
    assert literal_prefix(pattern) == expected
