# SPDX-License-Identifier: Apache-2.0
"""Why an application is not triggered is logged when that changes, not at every pass."""

from typing import Any

import structlog.testing

from pipecd.git.commit import Commit, parse_commit
from pipecd.model.errors import Unauthenticated, Unavailable
from pipecd.piped.notify.event import NotificationEvent
from pipecd.piped.notify.notifier import Notifier, PipedIdentity
from pipecd.piped.trigger.trigger_pass import TriggerFailures
from pipecd.proto.model.application_pb2 import Application

CART = Application(id="cart", name="Cart")
UNAVAILABLE, REFUSED = Unavailable("connection refused"), Unauthenticated("the key is wrong")


class SilentNotifier(Notifier):
    """Fails on any notification."""

    def notify(self, event: NotificationEvent) -> None:
        raise AssertionError(event)


def commit(hash: str) -> Commit:
    return parse_commit(f"{hash}\0ann\0001\0a change\0".encode())


def test_a_temporary_error_is_logged_once_per_commit_and_reason_without_a_notification() -> None:
    def entry(commit: Commit, error: Exception) -> dict[str, Any]:
        fields = {"event": "application not triggered, retrying", "log_level": "warning"}
        return {
            **fields,
            "application": "cart",
            "application_name": "Cart",
            "commit": commit.hash,
            "error": str(error),
        }

    first, second = commit("a1"), commit("b2")
    failures = TriggerFailures(SilentNotifier(PipedIdentity("", "", "")))
    with structlog.testing.capture_logs() as logs:
        for head, error in (
            (first, UNAVAILABLE),
            (first, UNAVAILABLE),
            (second, UNAVAILABLE),
            (second, REFUSED),
        ):
            failures.failed(CART, head, error, None)
    assert logs == [entry(first, UNAVAILABLE), entry(second, UNAVAILABLE), entry(second, REFUSED)]


def test_an_error_that_returns_is_logged_again() -> None:
    head, failures = commit("a1"), TriggerFailures(SilentNotifier(PipedIdentity("", "", "")))
    with structlog.testing.capture_logs() as logs:
        failures.failed(CART, head, UNAVAILABLE, None)
        failures.decided(CART, head, "", None)
        failures.failed(CART, head, UNAVAILABLE, None)
    assert len(logs) == 2
