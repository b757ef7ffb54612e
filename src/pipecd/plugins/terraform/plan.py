# SPDX-License-Identifier: Apache-2.0
"""What a plan of Terraform changes, read from its JSON; decisions about plans are made here."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

MASK = "(sensitive value)"
# A shorter text, such as a port, occurs in other places by chance.
_SHORTEST_SECRET = 4
_IDLE = (("no-op",), ("read",))


@dataclass(frozen=True)
class ResourceChange:
    """The change of one resource, with the actions of Terraform in their order."""

    address: str
    actions: tuple[str, ...]
    is_imported: bool = False

    @property
    def destroys(self) -> bool:
        """Whether the resource, or the one that it replaces, is destroyed."""
        return "delete" in self.actions

    def __str__(self) -> str:
        words: dict[tuple[str, ...], str] = {
            ("create",): "create",
            ("update",): "change",
            ("delete",): "destroy",
            ("forget",): "forget",
        }
        action = words.get(self.actions, "replace" if self.destroys else "import")
        return f"{action} {self.address}"


@dataclass(frozen=True)
class Plan:
    """The changes of a plan; `digest` identifies them without any sensitive value."""

    changes: tuple[ResourceChange, ...]
    outputs: tuple[str, ...]
    digest: str

    @property
    def imports(self) -> int:
        """The number of resources to import."""
        return sum(change.is_imported for change in self.changes)

    @property
    def adds(self) -> int:
        """The number of resources to create, replacements included."""
        return sum("create" in change.actions for change in self.changes)

    @property
    def updates(self) -> int:
        """The number of resources to change in place."""
        return sum("update" in change.actions for change in self.changes)

    @property
    def destroys(self) -> int:
        """The number of resources to destroy, replacements included."""
        return sum(change.destroys for change in self.changes)

    @property
    def summary(self) -> str:
        """The counts in one line."""
        if not self.changes and self.outputs:
            return f"{len(self.outputs)} outputs to change"
        return (
            f"{self.imports} to import, {self.adds} to add, {self.updates} to change, "
            f"{self.destroys} to destroy"
        )

    def is_remainder_of(self, shown: Sequence[ResourceChange]) -> bool:
        """Reports whether an interrupted apply of the shown changes leaves these to be done.

        A resource whose creation was interrupted is replaced.
        """
        approved = {change.address: change for change in shown}
        return all(
            change.address in approved
            and (
                change.actions == approved[change.address].actions
                or (
                    {"create", "delete"} == {*change.actions}
                    and "create" in approved[change.address].actions
                )
            )
            for change in self.changes
        )


def read_plan(document: Mapping[str, Any]) -> Plan:
    """Reads what `show -json` prints of a plan."""
    changes: list[ResourceChange] = []
    identity: list[object] = []
    for resource in _list(document, "resource_changes"):
        change = _map(resource, "change")
        actions = tuple(str(action) for action in _list(change, "actions"))
        is_imported = bool(change.get("importing"))
        if actions in _IDLE and not is_imported:
            continue
        address = str(resource.get("address", ""))
        if deposed := resource.get("deposed"):
            address = f"{address} (deposed object {deposed})"
        changes.append(ResourceChange(address, actions, is_imported))
        identity.append([address, actions, is_imported, *_masked_sides(change)])
    outputs: list[str] = []
    for name, change in sorted(_map(document, "output_changes").items()):
        if tuple(_list(change, "actions")) not in _IDLE:
            outputs.append(name)
            identity.append([name, *_masked_sides(change)])
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(text.encode()).hexdigest()
    return Plan(tuple(changes), tuple(outputs), digest)


def _masked_sides(change: Mapping[str, Any]) -> tuple[object, ...]:
    return (
        masked(change.get("before"), change.get("before_sensitive")),
        masked(change.get("after"), change.get("after_sensitive")),
        change.get("after_unknown"),
    )


def masked(value: Any, sensitive: Any) -> object:
    """Returns a value in which everything marked as sensitive is masked.

    Terraform marks in a value of the same shape, in which `true` covers everything below it.
    """
    if sensitive is True:
        return MASK
    if isinstance(value, dict) and isinstance(sensitive, dict):
        marks = cast("dict[str, Any]", sensitive)
        return {k: masked(v, marks.get(k)) for k, v in cast("dict[str, Any]", value).items()}
    if isinstance(value, list) and isinstance(sensitive, list):
        items, marks_of = cast("list[Any]", value), cast("list[Any]", sensitive)
        rest = [None] * max(len(items) - len(marks_of), 0)
        return [masked(v, mark) for v, mark in zip(items, [*marks_of, *rest], strict=False)]
    return cast("object", value)


def sensitive_texts(document: Mapping[str, Any]) -> frozenset[str]:
    """Returns the sensitive texts of a plan.

    Terraform does not mark what a provider computes from a sensitive value, so a text is sensitive
    wherever it occurs.
    """
    found = set[str]()
    for resource in _list(document, "resource_changes"):
        change = _map(resource, "change")
        for side in ("before", "after"):
            found |= set(marked_texts(change.get(side), change.get(f"{side}_sensitive")))
    declared = _map(_map(_map(document, "configuration"), "root_module"), "variables")
    given = _map(document, "variables")
    for name, variable in declared.items():
        if isinstance(variable, dict) and cast("dict[str, Any]", variable).get("sensitive"):
            found |= set(marked_texts(_map(given, name).get("value"), True))
    return frozenset(found)


def marked_texts(value: Any, sensitive: Any) -> Iterator[str]:
    """Yields the texts in the parts of a value that are marked as sensitive."""
    if isinstance(value, dict):
        for key, each in cast("dict[str, Any]", value).items():
            marks = cast("dict[str, Any]", sensitive) if isinstance(sensitive, dict) else {}
            yield from marked_texts(each, True if sensitive is True else marks.get(key))
    elif isinstance(value, list):
        items = cast("list[Any]", value)
        marks = cast("list[Any]", sensitive) if isinstance(sensitive, list) else []
        for index, each in enumerate(items):
            mark = marks[index] if index < len(marks) else None
            yield from marked_texts(each, True if sensitive is True else mark)
    elif isinstance(value, str) and sensitive is True and len(value) >= _SHORTEST_SECRET:
        yield value


def hide(text: str, secrets: frozenset[str]) -> str:
    """Returns the text with every secret in it masked, the longest first."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, MASK)
    return text


def _map(value: Any, key: str) -> dict[str, Any]:
    found = cast("Mapping[str, Any]", value).get(key)
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _list(value: Any, key: str) -> list[Any]:
    found = cast("Mapping[str, Any]", value).get(key)
    return cast("list[Any]", found) if isinstance(found, list) else []


PLAN_STAGE, APPROVAL_STAGE = "TERRAFORM_PLAN", "WAIT_APPROVAL"


def has_plan_before(stages: Sequence[str], index: int) -> bool:
    """Reports whether the plan was shown by a stage before the one at an index."""
    return PLAN_STAGE in stages[:index]


def is_approved_before(stages: Sequence[str], index: int) -> bool:
    """Reports whether people approve the shown plan before the stage at an index."""
    before = stages[:index]
    if PLAN_STAGE not in before:
        return False
    last_plan = len(before) - 1 - list(reversed(before)).index(PLAN_STAGE)
    return APPROVAL_STAGE in before[last_plan:]
