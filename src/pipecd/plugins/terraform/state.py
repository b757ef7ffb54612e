# SPDX-License-Identifier: Apache-2.0
"""The resources in the state of Terraform, as a tree of modules and resources."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from pipecd.plugins.terraform.plan import ResourceChange
from pipecd.plugins.terraform.sensitive import MASK, masked, state_secrets
from pipecd.sdk import Health, Resource

# What identifies a resource for people; other attributes may be secret without being marked.
_SHOWN = ("id", "name", "arn", "self_link", "region", "location", "zone")
_LONGEST_TEXT = 256
_NOTES = {
    "change": "differs from Git: the next apply changes it",
    "destroy": "is not in Git: the next apply destroys it",
    "replace": "differs from Git: the next apply replaces it",
}


def resource_tree(
    document: Mapping[str, Any], target: str, changes: Sequence[ResourceChange] = ()
) -> list[Resource]:
    """Returns the resources of what `show -json` prints of the state.

    Those that a plan changes say so.
    """
    values = cast("Mapping[str, Any]", document.get("values") or {})
    root = cast("Mapping[str, Any]", values.get("root_module") or {})
    secrets = frozenset(state_secrets(document))
    notes = {change.address: _NOTES.get(change.word, "") for change in changes}
    return [
        replace(resource, health_text=resource.health_text or notes.get(resource.id, ""))
        for resource in _module(root, "", target, secrets)
    ]


def _module(
    module: Mapping[str, Any], parent: str, target: str, secrets: frozenset[str]
) -> Iterator[Resource]:
    address = str(module.get("address", ""))
    if address:
        yield Resource(
            id=address,
            name=address.rpartition("module.")[2],
            kind="module",
            target=target,
            health=Health.HEALTHY,
            parents=(parent,) if parent else (),
            metadata={"Address": address},
        )
    for resource in _dicts(module.get("resources")):
        if resource.get("mode") == "managed":
            yield _resource(resource, address, target, secrets)
    for child in _dicts(module.get("child_modules")):
        yield from _module(child, address, target, secrets)


def _resource(
    resource: Mapping[str, Any], module: str, target: str, secrets: frozenset[str]
) -> Resource:
    address = str(resource.get("address", ""))
    provider = str(resource.get("provider_name", ""))
    metadata = {"Address": address, "Provider": provider.removeprefix("registry.terraform.io/")}
    shown: object = masked(resource.get("values"), resource.get("sensitive_values"))
    for name, value in cast("Mapping[str, object]", shown or {}).items():
        if name in _SHOWN and isinstance(value, str) and value:
            metadata[name] = MASK if value in secrets else value[:_LONGEST_TEXT]
    is_tainted = bool(resource.get("tainted"))
    if deposed := resource.get("deposed_key"):
        address, metadata["Deposed"] = f"{address} {deposed}", str(deposed)
    return Resource(
        id=address,
        name=address.removeprefix(f"{module}.") if module else address,
        kind=str(resource.get("type", "")),
        target=target,
        health=Health.UNHEALTHY if is_tainted or deposed else Health.HEALTHY,
        health_text=(
            "it is tainted: its creation failed, and the next apply replaces it"
            if is_tainted
            else "it is deposed: its replacement exists, and the next apply destroys it"
            if deposed
            else ""
        ),
        parents=(module,) if module else (),
        metadata=metadata,
    )


def _dicts(value: Any) -> list[dict[str, Any]]:
    return cast("list[dict[str, Any]]", value) if isinstance(value, list) else []
