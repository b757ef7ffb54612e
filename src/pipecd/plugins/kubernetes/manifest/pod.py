# SPDX-License-Identifier: Apache-2.0
"""The pods that an object makes, or is."""

from collections.abc import Mapping, Sequence
from typing import Any

from pipecd.plugins.kubernetes.manifest.body import at, changed, list_at, map_at, text_at
from pipecd.plugins.kubernetes.manifest.manifest import Manifest
from pipecd.sdk.diff import is_list

CONTAINERS, INIT_CONTAINERS = "containers", "initContainers"
TEMPLATE = ("spec", "template", "spec")
_PATHS: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("", "Pod"): ("spec",),
    ("batch", "CronJob"): ("spec", "jobTemplate", *TEMPLATE),
}


def pod_path(manifest: Manifest) -> tuple[str, ...]:
    """Returns where the specification of pods stands, whether or not there is one."""
    return _PATHS.get((manifest.key.group, manifest.kind), TEMPLATE)


def with_single_variables(manifest: Manifest) -> Manifest:
    """Returns an object whose containers name each variable once; the last one counted anyway.

    Kubectl applies repeated variables; a server that merges lists by name refuses them.
    """
    path, body = pod_path(manifest), manifest.body
    for field in (CONTAINERS, INIT_CONTAINERS):
        containers = list_at(body, *path, field)
        if any(_repeats(list_at(container, "env")) for container in containers):
            body = changed(body, (*path, field), _each_with_single_variables)
    return manifest if body is manifest.body else manifest.with_body(body)


def _each_with_single_variables(containers: Sequence[Any]) -> list[Any]:
    return [
        {**map_at(container), "env": _last_of_each(list_at(container, "env"))}
        if is_list(at(container, "env"))
        else container
        for container in containers
    ]


def _repeats(variables: Sequence[Any]) -> bool:
    return len({text_at(each, "name") for each in variables}) < len(variables)


def _last_of_each(variables: Sequence[Any]) -> list[Any]:
    last = {text_at(each, "name"): index for index, each in enumerate(variables)}
    return [variables[index] for index in sorted(last.values())]
