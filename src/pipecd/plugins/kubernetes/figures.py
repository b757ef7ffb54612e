# SPDX-License-Identifier: Apache-2.0
"""What the plugin counts, at the names that dashboards know."""

from typing import Protocol

from pipecd.sdk import StartContext

# What stands for kubectl, which is not run: requests to the API server itself.
_API_SERVER = "apiserver"


class ProgramEnded(Protocol):
    """Hears that a program was run."""

    def __call__(self, program: str, version: str, command: str, *, is_success: bool) -> None: ...


class Figures:
    """Counts the requests and the events of watches, and the calls that deployments make."""

    def __init__(self, start: StartContext) -> None:
        self._requests = start.tally(
            "livestatestore_kubernetes_api_requests_total",
            "Requests of watches to API servers.",
            ("host", "method", "code"),
        )
        self._events = start.tally(
            "livestatestore_kubernetes_resource_events_total",
            "Events of watches; those that concern an application are handled.",
            ("event", "handled"),
        )
        self._calls = start.tally(
            "cloudprovider_kubernetes_tool_calls_total",
            "Calls of API servers and of programs for deployments.",
            ("tool", "version", "command", "status"),
        )

    def answered(self, host: str, method: str, code: str) -> None:
        """Counts a request of those who watch a cluster."""
        self._requests.add(host=host, method=method, code=code)

    def heard(self, event: str, *, is_handled: bool) -> None:
        """Counts an event of a watch."""
        self._events.add(event=event, handled="true" if is_handled else "false")

    def asked(self, command: str, *, is_success: bool) -> None:
        """Counts something that a stage asked of an API server."""
        self.ran(_API_SERVER, "", command, is_success=is_success)

    def ran(self, program: str, version: str, command: str, *, is_success: bool) -> None:
        """Counts a run of a program."""
        status = "success" if is_success else "failure"
        self._calls.add(tool=program, version=version, command=command, status=status)


def uncounted(*_: object, **__: object) -> None:
    """Counts nothing, for those whom nobody asks for figures."""
