# SPDX-License-Identifier: Apache-2.0
"""A large repository with 500 applications: its mirror, polls, and 200 working copies at once.

An eighth of the data is in the directories of the applications, the rest is outside. Of the
applications, six in ten are self-contained, four in ten use a Kustomize base outside, and one in
fifty has a script that changes to the root and so requires the whole repository. The baseline is
a working copy of the whole repository for each deployment, created by `git worktree add`.
"""

import argparse
import asyncio
import importlib
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipecd.config.catalog import load_catalog
from pipecd.git.credentials import GitCredentials
from pipecd.git.mirror import Mirror, Repository, open_mirrors
from pipecd.piped.source.configs import ApplicationConfigs
from pipecd.piped.source.render import TemplateRenderer
from pipecd.piped.source.sources import Sources
from pipecd.program.workers import WorkerPool
from pipecd.proto.model.common_pb2 import ApplicationGitPath, ApplicationGitRepository

APPLICATIONS, TOUCHED = 500, 200
MANIFESTS = 12
MEBIBYTE = 1024 * 1024
CONFIG = "apiVersion: pipecd.dev/v1beta1\nkind: Application\nspec:\n  name: app\n"

# The Git servers of the tests.
TESTS = str(Path(__file__).parents[1] / "tests")
sys.path.append(TESTS)
HTTP_SERVER = """
import sys
from pathlib import Path
sys.path.append(sys.argv[1])
from servers.git_http import GitHttp
print(GitHttp(Path(sys.argv[2])).address, flush=True)
"""


def git(path: Path, *arguments: str, stdin: bytes = b"") -> str:
    command = ["git", "-c", "core.compression=0", *arguments]
    done = subprocess.run(command, cwd=path, input=stdin, check=True, capture_output=True)
    return done.stdout.decode().strip()


def own_files(number: int, round_: int) -> dict[str, bytes]:
    """Returns the manifests and the configuration of one application."""
    files = {f"m{i}.yaml": f"name: a{number}\nround: {round_}\n".encode() for i in range(MANIFESTS)}
    files["app.pipecd.yaml"] = CONFIG.encode()
    if number % 10 >= 6:
        files["kustomization.yaml"] = b"resources: [../../base]\n"
    if number % 50 == 0:
        files["run.sh"] = b"cd ../.. && ls\n"
    return files


def commit(repository: Path, message: str, files: dict[str, bytes], parent: str = "") -> None:
    """Creates a commit with `git fast-import`, which is much faster than a working tree."""
    with subprocess.Popen(
        ["git", "-c", "core.compression=0", "fast-import", "--quiet", "--depth=0"],
        cwd=repository,
        stdin=subprocess.PIPE,
    ) as importing:
        out = importing.stdin
        assert out is not None
        origin = f"from {parent}\n" if parent else ""
        who = f"bench <bench@example.com> {int(time.time())} +0000"
        out.write(f"commit refs/heads/main\ncommitter {who}\ndata {len(message)}\n".encode())
        out.write(f"{message}\n{origin}".encode())
        for path, content in files.items():
            out.write(f"M 100644 inline {path}\ndata {len(content)}\n".encode() + content + b"\n")


def generate(path: Path, mebibytes: int) -> None:
    path.mkdir()
    git(path, "init", "-q", "--bare", "-b", "main")
    # Random data has no deltas; searching for them would take minutes.
    git(path, "config", "pack.window", "0")
    files: dict[str, bytes] = {f"base/b{i}.yaml": b"base: true\n" for i in range(10)}
    per_application = mebibytes * MEBIBYTE // 8 // APPLICATIONS // 4
    for number in range(APPLICATIONS):
        for name, content in own_files(number, 0).items():
            files[f"apps/a{number}/{name}"] = content
        for part in range(4):
            files[f"apps/a{number}/chart/part{part}"] = os.urandom(per_application)
    commit(path, "first", files)
    head = git(path, "rev-parse", "main")
    rest = mebibytes * 7 // 8
    for start in range(0, rest, 256):
        part = {
            f"data/d{i // 64}/{i}": os.urandom(MEBIBYTE)
            for i in range(start, min(start + 256, rest))
        }
        commit(path, f"data {start}", part, head)
        head = git(path, "rev-parse", "main")


def push_to_many(path: Path) -> None:
    files = {
        f"apps/a{number}/{name}": content
        for number in range(TOUCHED)
        for name, content in own_files(number, 1).items()
    }
    commit(path, "touch 200 applications", files, git(path, "rev-parse", "main"))


def disk(path: Path) -> float:
    """Returns the disk usage of a directory in MiB; hard links count once."""
    if not path.exists():
        return 0.0
    done = subprocess.run(["du", "-sk", str(path)], check=True, capture_output=True)
    return int(done.stdout.split()[0]) / 1024


def cpu() -> float:
    both = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    used = [resource.getrusage(who) for who in both]
    return sum(each.ru_utime + each.ru_stime for each in used)


async def timed(what: str, work: Callable[[], Awaitable[Any]]) -> tuple[Any, float]:
    began, used = time.perf_counter(), cpu()
    result = await work()
    seconds = time.perf_counter() - began
    print(f"{what:<58} {seconds:8.2f} s  {cpu() - used:7.2f} s of CPU time")
    return result, seconds


async def measure_polls(what: str, mirror: Mirror, count: int) -> None:
    await mirror.update()
    used, began = cpu(), time.perf_counter()
    for _ in range(count):
        await mirror.update()
    each = (cpu() - used) / count
    share = each / mirror.poll_interval * 100
    wait = (time.perf_counter() - began) / count
    print(
        f"a poll over {what:<46} {wait * 1000:7.1f} ms  {each * 1000:7.2f} ms of CPU time,"
        f" {share:.2f} % of a core at one every {mirror.poll_interval:.2g} s"
    )


@contextmanager
def served_over_http(root: Path) -> Generator[str]:
    """Runs a server whose CPU time is not measured, in its own process; yields its address."""
    with subprocess.Popen(
        [sys.executable, "-c", HTTP_SERVER, TESTS, str(root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as serving:
        yield serving.stdout.readline().strip() if serving.stdout else ""
        serving.terminate()


async def measure_remote_polls(directory: Path) -> None:
    """Measures polls over HTTP and SSH, without the CPU time of the servers."""
    small = directory / "small"
    small.mkdir(parents=True)
    git(small, "init", "-q", "--bare", "-b", "main")
    commit(small, "small", {"a": b"a"})
    ssh: Any = importlib.import_module("servers.git_ssh").GitSsh()
    try:
        credentials = GitCredentials(ssh_key=ssh.private_key.encode())
        with served_over_http(directory) as http:
            for name, url, count in (("http", f"{http}/small", 50), ("ssh", ssh.url(small), 20)):
                one = [Repository(name, url, "main")]
                async with open_mirrors(
                    one, directory=directory / name, credentials=credentials
                ) as mirrors:
                    await measure_polls(name, mirrors.of(name), count)
    finally:
        ssh.close()


def measure_worktree(mirror: Mirror, directory: Path) -> tuple[float, float]:
    """Returns the seconds and MiB of one working copy of the whole repository."""
    began = time.perf_counter()
    git(mirror.clone.directory, "worktree", "add", "-q", "--detach", str(directory), "main")
    seconds, size = time.perf_counter() - began, disk(directory)
    git(mirror.clone.directory, "worktree", "remove", "--force", str(directory))
    return seconds, size


async def working_copies(sources: Sources, commit_hash: str, directory: Path) -> None:
    repo = ApplicationGitRepository(id="big", branch="main")

    async def create(number: int) -> None:
        path = ApplicationGitPath(
            repo=repo, path=f"apps/a{number}", config_filename="app.pipecd.yaml"
        )
        await sources.at(path, commit_hash, into=directory / str(number))

    await asyncio.gather(*(create(number) for number in range(TOUCHED)))


async def measure(root: Path, mebibytes: int) -> None:
    origin, work = root / "origin.git", root / "work"
    print(f"generating a repository of {mebibytes} MiB with {APPLICATIONS} applications")
    await asyncio.to_thread(generate, origin, mebibytes)
    await measure_remote_polls(root / "servers")
    repository = Repository("big", str(origin), "main")
    async with (
        open_mirrors([repository], directory=work / "git", credentials=GitCredentials()) as mirrors,
        WorkerPool() as workers,
    ):
        mirror = mirrors.of("big")
        head, _ = await timed("the first mirror", mirror.update)
        print(f"{'  on disk':<58} {disk(work / 'git'):8.0f} MiB")
        await measure_polls("files", mirror, 200)
        await asyncio.to_thread(push_to_many, origin)
        pushed, _ = await timed("fetch of a push that changes 200 applications", mirror.update)
        sources = Sources(
            mirrors,
            ApplicationConfigs(load_catalog()),
            project="bench",
            renderer=TemplateRenderer(workers),
        )
        # The running commits of the same applications.
        _, first = await timed(
            "200 working copies of running commits",
            lambda: working_copies(sources, head.hash, work / "running"),
        )
        _, second = await timed(
            "200 working copies of pushed commits",
            lambda: working_copies(sources, pushed.hash, work / "target"),
        )
        whole = disk(work / "git" / "whole")
        used = disk(work) - disk(work / "git")
        seconds, size = await asyncio.to_thread(measure_worktree, mirror, root / "worktree")
    print(f"{'400 working copies on disk':<58} {used:8.0f} MiB")
    print(f"{'  and the whole commits that eight of them share':<58} {whole:8.0f} MiB")
    print(f"{'one working copy of the whole repository':<58} {seconds:8.2f} s  {size:7.0f} MiB")
    print(f"{'time against 400 of those':<58} {400 * seconds / (first + second):8.0f} times less")
    print(f"{'disk against 400 of those':<58} {400 * size / (used + whole):8.0f} times less")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mebibytes", type=int, default=2048, help="size of the repository")
    parser.add_argument(
        "--directory",
        default=None,
        help="parent of the working directory, with space for three repositories",
    )
    settings = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="pipecd-bench-", dir=settings.directory))
    try:
        asyncio.run(measure(root, settings.mebibytes))
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
