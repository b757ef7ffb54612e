# SPDX-License-Identifier: Apache-2.0
"""The metrics of the plugin, under the names that upstream's dashboards query."""

from typing import Protocol

from pipecd.sdk import StartContext

# The value of `tool` for requests to the API server, which upstream makes with kubectl.
_API_SERVER = "apiserver"


class RecordToolCall(Protocol):
    """Records one run of a tool such as helm."""

    def __call__(self, tool: str, version: str, command: str, *, is_success: bool) -> None: ...


class Metrics:
    """Counts requests and events of informers, and the tool calls of deployments."""

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

    def record_response(self, host: str, method: str, code: str) -> None:
        """Counts a response to a request of an informer."""
        self._requests.add(host=host, method=method, code=code)

    def record_event(self, event: str, *, is_handled: bool) -> None:
        """Counts an event of a watch."""
        self._events.add(event=event, handled="true" if is_handled else "false")

    def record_request(self, command: str, *, is_success: bool) -> None:
        """Counts a request of a stage to an API server."""
        self.record_tool_call(_API_SERVER, "", command, is_success=is_success)

    def record_tool_call(self, tool: str, version: str, command: str, *, is_success: bool) -> None:
        """Counts a run of a tool."""
        status = "success" if is_success else "failure"
        self._calls.add(tool=tool, version=version, command=command, status=status)


def not_recorded(*_: object, **__: object) -> None:
    """Records nothing; the default where a caller passes no recorder."""
