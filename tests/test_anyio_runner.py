# SPDX-License-Identifier: Apache-2.0
"""One test that goes wrong does not take those after it with it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import asyncio
import pytest

@pytest.fixture(scope="session")
def anyio_backend():
    return "asyncio"

@pytest.fixture(scope="session")
async def shared(anyio_backend):
    yield "still there"

async def test_before(shared):
    assert shared

@pytest.mark.timeout(1)
async def test_wrong(shared):
{body}

async def test_after(shared):
    assert asyncio.current_task().cancelling() == 0
    assert shared == "still there"
"""


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(["asyncio.current_task().cancel()", "await asyncio.sleep(9)"], id="cancelled"),
        pytest.param(["await asyncio.sleep(9)"], id="hangs"),
        pytest.param(
            ["async with asyncio.TaskGroup() as g:", "    g.create_task(asyncio.sleep(9))"],
            id="hangs in a task group",
        ),
        pytest.param(
            ["async with asyncio.TaskGroup():", "    pytest.fail('no')"],
            id="fails in a task group",
        ),
        pytest.param(["raise BaseExceptionGroup('', [KeyError(), SystemExit()])"], id="exits"),
    ],
)
def test_the_tests_after_one_that_goes_wrong_run(tmp_path: Path, body: list[str]) -> None:
    indented = "\n".join(f"    {line}" for line in body)
    (tmp_path / "test_it.py").write_text(TESTS.format(body=indented))
    options = ["-p", "anyio_runner", "-o", "anyio_mode=auto", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "test_it.py"],
        cwd=tmp_path, check=False, capture_output=True, text=True, timeout=60,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
    )  # fmt: skip
    assert "1 failed, 2 passed" in done.stdout, done.stdout
