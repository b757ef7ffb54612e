# SPDX-License-Identifier: Apache-2.0
"""Keeps the task in which anyio runs all tests and fixtures alive, whatever a test does to it.

anyio's runner ends with a cancellation that leaves a test and with a timeout inside a task group;
every later test of the process would then fail with ClosedResourceError.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest
from _pytest.outcomes import OutcomeException
from anyio._backends._asyncio import TestRunner

T = TypeVar("T")
# How long a test that ran into its timeout may take to clean up.
CLEANUP_SECONDS = 30

_call = TestRunner._call_in_runner_task  # pyright: ignore[reportPrivateUsage]
_run_test = TestRunner.run_test


def outcome_in(group: BaseExceptionGroup[BaseException]) -> BaseException | None:
    """The timeout, failure or skip that pytest raised inside a task group."""
    for raised in group.exceptions:
        found = outcome_in(raised) if isinstance(raised, BaseExceptionGroup) else raised
        if isinstance(found, OutcomeException):
            return found
    return None


async def guard(awaitable: Awaitable[T]) -> T:
    """Awaits a test or fixture; what would end the runner becomes a failure of that test."""
    task = asyncio.current_task()
    try:
        return await awaitable
    except asyncio.CancelledError as e:
        raise AssertionError("a cancellation left the test") from e
    except BaseExceptionGroup as group:
        if isinstance(group, Exception):
            raise
        if outcome := outcome_in(group):
            raise outcome from group
        raise AssertionError("a task group of the test was interrupted") from group
    finally:
        # Before Python 3.13 a TaskGroup may leave its task with a pending cancellation.
        while task is not None and task.cancelling():
            task.uncancel()


async def call_guarded(
    self: TestRunner, func: Callable[..., Awaitable[T]], /, *args: object, **kwargs: object
) -> T:
    return await _call(self, lambda: guard(func(*args, **kwargs)))


def run_test_to_its_end(
    self: TestRunner, test_func: Callable[..., Any], kwargs: dict[str, Any]
) -> None:
    """A timeout leaves the event loop in the middle of a test, which is cancelled first."""
    ended = asyncio.Event()

    async def run(**given: object) -> None:
        try:
            await test_func(**given)
        finally:
            ended.set()

    try:
        _run_test(self, run, kwargs)
    except OutcomeException:
        runner = self._runner_task  # pyright: ignore[reportPrivateUsage]
        if runner is not None and not runner.done() and not ended.is_set():
            runner.cancel()
            self.get_loop().run_until_complete(asyncio.wait_for(ended.wait(), CLEANUP_SECONDS))
        raise


@pytest.hookimpl(tryfirst=True)
def pytest_configure() -> None:
    TestRunner._call_in_runner_task = call_guarded  # pyright: ignore[reportPrivateUsage,reportAttributeAccessIssue]
    TestRunner.run_test = run_test_to_its_end
