# SPDX-License-Identifier: Apache-2.0
"""Compares the definitions in Git with what runs, and with each other for a plan preview."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pipecd.plugins.ecs.api import TaskSet
from pipecd.plugins.ecs.definitions import (
    EXTERNAL,
    Definitions,
    ServiceDefinition,
    TaskDefinition,
)
from pipecd.plugins.ecs.snapshots import ServiceState
from pipecd.sdk import Preview, SyncState, SyncStatus
from pipecd.sdk.aws_documents import go_names
from pipecd.sdk.diff import Options, compare, is_list, is_map, render
from pipecd.sdk.drift import drift_details
from pipecd.sdk.unstructured import Body, list_at, text_at
from pipecd.sdk.yaml import write_yaml

_OUT_OF_SYNC = "The ecs definition files are not synced"
# A field that only the live side has was added by AWS.
_DRIFT = Options(equate_empty=True, subset=True, numeric_strings=True)
# The values are those of the deployment, or the ones that the last deployment left to autoscaling.
_NOT_COMPARED = ("ClientToken", "LoadBalancers", "RoleArn", "Tags", "TaskDefinition")
_OF_TASK_SETS = (
    *("capacityProviderStrategy", "launchType", "networkConfiguration", "platformVersion"),
    "serviceRegistries",
)
_UNORDERED = frozenset({"Environment", "Secrets", "SecurityGroups", "Subnets"})


def sync_state(
    definitions: Definitions,
    state: ServiceState,
    live_task: Body | None,
    commit: str,
    ignored: Mapping[str, Sequence[str]],
) -> SyncState:
    """Returns whether a service and its task definition are as in Git.

    `ignored` are the paths that the application ignores, by the name of the service.
    """
    if live_task is None:
        return SyncState(SyncStatus.OUT_OF_SYNC, "The service has no primary task set")
    if definitions.service is None:
        return SyncState(SyncStatus.UNKNOWN)
    expected = {
        "ServiceDefinition": _expected_service(definitions.service, state.service),
        "TaskDefinition": _expected_task(definitions.task),
    }
    actual = {
        "ServiceDefinition": _live_service(state),
        "TaskDefinition": _live_task(live_task, definitions.task),
    }
    paths = frozenset(ignored.get(definitions.service.name, ()))
    return _compared(actual, expected, commit, paths)


def standalone_sync_state(
    task: TaskDefinition,
    live_task: Body | None,
    commit: str,
    ignored: Mapping[str, Sequence[str]],
) -> SyncState:
    """Returns whether the newest revision of a standalone task is as in Git."""
    if live_task is None:
        return SyncState(
            SyncStatus.OUT_OF_SYNC, f"The task definition {task.family} is not registered"
        )
    return _compared(
        {"TaskDefinition": _live_task(live_task, task)},
        {"TaskDefinition": _expected_task(task)},
        commit,
        frozenset(ignored.get(task.family, ())),
    )


def _compared(
    actual: Mapping[str, Any], expected: Mapping[str, Any], commit: str, ignored: frozenset[str]
) -> SyncState:
    nodes = compare(actual, expected, replace(_DRIFT, ignored=ignored))
    if not nodes:
        return SyncState(SyncStatus.SYNCED)
    text = render(nodes, masked=_secret_paths(actual, expected))
    details = drift_details(commit, text)
    return SyncState(SyncStatus.OUT_OF_SYNC, _OUT_OF_SYNC, details)


def _secret_paths(*sides: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns where values of the environment are, which may be secrets."""
    count = max(len(list_at(side, "TaskDefinition", "ContainerDefinitions")) for side in sides)
    prefix = "TaskDefinition.ContainerDefinitions"
    return tuple(
        f"{prefix}.{index}.{field}"
        for index in range(count)
        for field in ("Environment.", "LogConfiguration.Options", "DockerLabels")
    )


def _expected_service(service: ServiceDefinition, live: Body) -> dict[str, Any]:
    shown = service.shown()
    for key in _NOT_COMPARED:
        shown.pop(key, None)
    if not service.desired_count:
        # Autoscaling decides.
        shown.pop("DesiredCount", None)
    arn = text_at(live, "clusterArn")
    if arn.endswith(f"/{service.cluster}"):
        shown["ClusterArn"] = arn
    if shown.get("PlatformVersion") == "LATEST":
        shown.pop("PlatformVersion")
    return _ordered(shown)


def _live_service(state: ServiceState) -> dict[str, Any]:
    document = dict(state.service)
    primary = next((each for each in state.task_sets if each.is_primary), TaskSet({}))
    if text_at(document.get("deploymentController"), "type") == EXTERNAL:
        for key in _OF_TASK_SETS:
            document[key] = primary.document.get(key)
    present = {key: value for key, value in document.items() if value is not None}
    return _ordered(go_names("ecs", "Service", present))


def _expected_task(task: TaskDefinition) -> dict[str, Any]:
    shown = task.shown()
    shown.pop("Tags", None)
    shown["ContainerDefinitions"] = [
        _without_host_ports({"Environment": [], "Secrets": [], **container})
        for container in list_at(shown, "ContainerDefinitions")
    ]
    return _ordered(shown)


def _live_task(document: Body, task: TaskDefinition) -> dict[str, Any]:
    """Returns a live task definition with its containers in the order of Git."""
    order = {name: index for index, name in enumerate(task.images)}
    shown = go_names("ecs", "TaskDefinition", document)
    shown["ContainerDefinitions"] = sorted(
        (_without_host_ports(each) for each in list_at(shown, "ContainerDefinitions")),
        key=lambda container: order.get(text_at(container, "Name"), len(order)),
    )
    return _ordered(shown)


def _without_host_ports(container: Body) -> dict[str, Any]:
    """Leaves out the ports of hosts, whose defaults depend on the network mode."""
    ports = [
        {key: value for key, value in port.items() if key != "HostPort"}
        for port in list_at(container, "PortMappings")
    ]
    return {**container, **({"PortMappings": ports} if ports else {})}


def _ordered(value: Any, key: str = "") -> Any:
    """Sorts lists whose order means nothing."""
    if is_map(value):
        return {name: _ordered(child, name) for name, child in value.items()}
    if not is_list(value):
        return value
    children = [_ordered(child) for child in value]
    if key in _UNORDERED:
        return sorted(children, key=lambda each: text_at(each, "Name") or str(each))
    return children


def preview(target: str, running: Definitions | None, desired: Definitions) -> Preview:
    """Compares the definitions of the running commit with those of a change."""
    task = _unified("taskdef", running.task.shown() if running else None, desired.task.shown())
    before = running.service.shown() if running and running.service else None
    service = _unified("servicedef", before, desired.service.shown() if desired.service else None)
    if not task and not service:
        return Preview(target, "No changes were detected", no_change=True)
    changed = (("task definition changed", task), ("service definition changed", service))
    summary = ", ".join(text for text, diff in changed if diff)
    return Preview(target, summary, "\n".join(diff for diff in (task, service) if diff))


def _unified(name: str, old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> str:
    before, after = (
        write_yaml(side).splitlines(keepends=True) if side else [] for side in (old, new)
    )
    lines = difflib.unified_diff(before, after, f"{name} (running)", f"{name} (target)")
    return "".join(lines)
