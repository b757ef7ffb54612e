# SPDX-License-Identifier: Apache-2.0
"""What every test can use."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

SPEC = Path(__file__).parent / "spec"


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Runs async tests on asyncio, the loop that gRPC needs."""
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
async def one_loop(anyio_backend: str) -> AsyncGenerator[None, None]:
    """Keeps one event loop for all tests, as gRPC reports late events to its first loop."""
    yield


@pytest.fixture(scope="session")
def spec_dir() -> Path:
    """Facts of the system to be compatible with: `wire.csv` and `vectors/`."""
    return SPEC
