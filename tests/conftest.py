# SPDX-License-Identifier: Apache-2.0
"""Fixtures and markers of all tests."""

import sys
from collections.abc import AsyncGenerator, Generator
from fnmatch import fnmatch
from pathlib import Path

import pytest
import structlog

from pipecd.program.workers import WorkerPool
from pipecd.secrets import keys

SPEC = Path(__file__).parent / "spec"

# Servers to test against are modules of `servers`.
sys.path.append(str(Path(__file__).parent))
pytest_plugins = ("servers.fixtures", "report", "anyio_runner")


# What `make test-fast` leaves out: whole servers, real databases, many processes;
SLOW_FILES = (
    "compat/*",
    "controlplane/api/*",
    "controlplane/console/*",
    "controlplane/datastore/*",
    "controlplane/filestore/test_buckets.py",
    "controlplane/filestore/test_files.py",
    "controlplane/operator/*",
    "controlplane/sso/*",
    "controlplane/test_replicas.py",
    "e2e/*",
    "launcher/test_launch.py",
    "launcher/test_program.py",
    "quickstart/*",
)
# whatever starts a whole control plane, a piped, a cluster, a browser, or asks a cloud.
SLOW_FIXTURES = frozenset(
    {
        "amazon",
        "aws",
        "chromium",
        "gcs",
        "git_ssh",
        "google",
        "kubernetes",
        "open_plane",
        "open_scene",
        "open_stand",
        "s3",
        "start_plane",
        "whole_piped",
    }
)
# A guard against tests that hang; `timeout` of pyproject.toml is the one of all others.
SLOW_SECONDS = 240


def is_slow(file: Path) -> bool:
    name = file.relative_to(Path(__file__).parent).as_posix()
    return any(fnmatch(name, pattern) for pattern in SLOW_FILES)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skips reading slow files when the run excludes slow tests."""
    return True if "not slow" in config.option.markexpr and is_slow(collection_path) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests of the slow files and those that use a slow fixture as such.

    What is slow on an idle machine is given time on a busy one.
    """
    for item in items:
        used: list[str] = getattr(item, "fixturenames", [])
        if is_slow(item.path) or not SLOW_FIXTURES.isdisjoint(used):
            item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_SECONDS))


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Runs async tests on asyncio, the loop that gRPC needs."""
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
async def one_loop(anyio_backend: str) -> AsyncGenerator[None, None]:
    """Keeps one event loop for all tests, as gRPC reports late events to its first loop."""
    yield


@pytest.fixture(scope="session")
async def workers(anyio_backend: str) -> AsyncGenerator[WorkerPool, None]:
    """Workers that all tests share, as starting one takes a while."""
    async with WorkerPool() as pool:
        yield pool


@pytest.fixture(autouse=True)
def default_logging() -> Generator[None, None, None]:
    """Undoes what a command line set up for logging."""
    yield
    structlog.reset_defaults()


@pytest.fixture(autouse=True)
def quick_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashes keys at the least cost, as most tests make some and the real cost is half their time."""
    monkeypatch.setattr(keys, "COST", 4)


@pytest.fixture(scope="session")
def spec_dir() -> Path:
    """Facts of the system to be compatible with: `wire.csv` and `vectors/`."""
    return SPEC
