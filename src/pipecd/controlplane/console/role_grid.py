# SPDX-License-Identifier: Apache-2.0
"""The policies of a role as a grid with a checkbox for each resource and action.

A row may be limited to objects with certain labels. Policies that need more than one such limit for
a resource have no grid and are edited as text.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pipecd.controlplane.auth.rbac import Action, Permission, Resource
from pipecd.controlplane.auth.rbac_policy import DELIMITERS
from pipecd.model.errors import UserMistake
from pipecd.proto.model.project_pb2 import ProjectRBACPolicy, ProjectRBACResource

# The rows of the grid.
RESOURCE_NAMES: Mapping[Resource, str] = {
    Resource.APPLICATION: "Applications",
    Resource.DEPLOYMENT: "Deployments",
    Resource.PIPED: "Pipeds",
    Resource.EVENT: "Events",
    Resource.DEPLOYMENT_CHAIN: "Deployment chains",
    Resource.INSIGHT: "Insights",
    Resource.API_KEY: "API keys",
    Resource.PROJECT: "Project settings",
}


def permission_text(permission: Permission) -> str:
    """A permission in the words of the grid, such as "list API keys"."""
    name = RESOURCE_NAMES.get(permission.resource, "everything")
    noun = name if name.startswith("API") else name.lower()
    return f"{permission.action.name.lower()} {noun}"


# The columns of the grid.
ACTIONS = tuple(action for action in Action if action is not Action.ALL)
# Objects that have labels.
LABELLED = (Resource.APPLICATION, Resource.DEPLOYMENT, Resource.EVENT)


@dataclass(frozen=True)
class GridRow:
    """What a role allows on a kind of resource, on all of them or on those with the labels."""

    actions: frozenset[Action] = frozenset()
    labels: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def labels_text(self) -> str:
        """The labels as the form has them."""
        return ", ".join(f"{key}:{value}" for key, value in sorted(self.labels.items()))


RoleGrid = Mapping[Resource, GridRow]


def grid_of(policies: Iterable[ProjectRBACPolicy]) -> RoleGrid | None:
    """The grid that allows the same; None if there is none."""
    granted: dict[Resource, dict[tuple[tuple[str, str], ...], set[Action]]] = {}
    for policy in policies:
        actions = {Action(number) for number in policy.actions}
        actions = set(ACTIONS) if Action.ALL in actions else actions
        for entry in policy.resources:
            kind = Resource(entry.type)
            for resource in RESOURCE_NAMES if kind is Resource.ALL else (kind,):
                labels = tuple(sorted(entry.labels.items()))
                granted.setdefault(resource, {}).setdefault(labels, set()).update(actions)
    grid: dict[Resource, GridRow] = {resource: GridRow() for resource in RESOURCE_NAMES}
    for resource, by_labels in granted.items():
        everywhere = by_labels.get((), set[Action]())
        limited = {
            labels: actions
            for labels, actions in by_labels.items()
            if labels and not actions <= everywhere
        }
        if len(limited) + bool(everywhere) > 1 or (limited and resource not in LABELLED):
            return None
        for labels, actions in (limited or {(): everywhere}).items():
            grid[resource] = GridRow(frozenset(actions), dict(labels))
    return grid


def policies_of(grid: RoleGrid) -> tuple[ProjectRBACPolicy, ...]:
    """The policies of a grid: resources with the same actions share one."""
    by_actions: dict[frozenset[Action], list[ProjectRBACResource]] = {}
    for resource, row in grid.items():
        if row.actions:
            kind = ProjectRBACResource.ResourceType.ValueType(resource)
            entry = ProjectRBACResource(type=kind, labels=row.labels)
            by_actions.setdefault(row.actions, []).append(entry)
    if not by_actions:
        raise UserMistake("Tick what the role allows; it allows nothing yet.")
    return tuple(
        ProjectRBACPolicy(resources=resources, actions=_action_values(actions))
        for actions, resources in by_actions.items()
    )


def parse_grid(fields: Mapping[str, str]) -> RoleGrid:
    """The grid of a submitted form; see `field_name` and `labels_name`."""
    return {
        resource: GridRow(
            frozenset(action for action in ACTIONS if field_name(resource, action) in fields),
            _parse_labels(fields.get(labels_name(resource), ""), RESOURCE_NAMES[resource]),
        )
        for resource in RESOURCE_NAMES
    }


def field_name(resource: Resource, action: Action) -> str:
    """The name of a checkbox."""
    return f"{resource.name.lower()}.{action.name.lower()}"


def labels_name(resource: Resource) -> str:
    """The name of the field with the labels of a row."""
    return f"{resource.name.lower()}.labels"


def _parse_labels(text: str, name: str) -> dict[str, str]:
    labels: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, colon, value = (piece.strip() for piece in part.partition(":"))
        is_plain = not any(c in DELIMITERS or c.isspace() for c in key + value)
        if not (key and colon and value and is_plain) or key in labels:
            raise UserMistake(
                f"Write the labels of {name.lower()} as key:value, with commas between them; "
                f"{part!r} is not one."
            )
        labels[key] = value
    return labels


def _action_values(actions: frozenset[Action]) -> list[ProjectRBACPolicy.Action.ValueType]:
    chosen = (Action.ALL,) if actions == frozenset(ACTIONS) else sorted(actions)
    return [ProjectRBACPolicy.Action.ValueType(action) for action in chosen]
