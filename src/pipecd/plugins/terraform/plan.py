# SPDX-License-Identifier: Apache-2.0
"""What a plan of Terraform changes, read from its JSON; decisions about plans are made here.

The plan of a backend that runs plans itself has no JSON, so it is read from its text.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from pipecd.plugins.terraform.sensitive import masked
from pipecd.sdk.counts import counted

_CHANGE = re.compile(
    r"^ *# (?P<address>\S.*?)(?: will be| must be| is tainted, so must be) "
    r"(?P<action>created|updated in-place|destroyed|replaced|imported)\b"
)
_OUTPUTS = "Changes to Outputs:"
_OUTPUT = re.compile(r"^  [+~-] (?P<name>[\w-]+) +=")
_DEPOSED = " (deposed object "
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

    @property
    def word(self) -> str:
        """What happens to the resource, in one word."""
        words: dict[tuple[str, ...], str] = {
            ("create",): "create",
            ("update",): "change",
            ("delete",): "destroy",
            ("forget",): "forget",
        }
        return words.get(self.actions, "replace" if self.destroys else "import")

    def __str__(self) -> str:
        return f"{self.word} {self.address}"


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
            return f"{counted(len(self.outputs), 'output')} to change"
        return (
            f"{self.imports} to import, {self.adds} to add, {self.updates} to change, "
            f"{self.destroys} to destroy"
        )

    @property
    def signs(self) -> str:
        """The counts with the signs of Terraform, for a narrow place."""
        if not self.changes and self.outputs:
            return f"~{counted(len(self.outputs), 'output')}"
        counts = (("+", self.adds), ("~", self.updates), ("-", self.destroys))
        texts = [f"{sign}{count}" for sign, count in counts if count]
        return " ".join([*texts, *([f"{self.imports} imported"] if self.imports else [])])

    def is_remainder_of(self, shown: Sequence[ResourceChange]) -> bool:
        """Reports whether an interrupted apply of the shown changes leaves these to be done."""
        approved = {change.address: change for change in shown}
        return all(_is_remainder(change, approved) for change in self.changes)


def _is_remainder(change: ResourceChange, approved: Mapping[str, ResourceChange]) -> bool:
    address, is_old_object, _ = change.address.partition(_DEPOSED)
    shown = approved.get(change.address) or approved.get(address)
    if shown is None or change.actions == shown.actions:
        return shown is not None
    if is_old_object:
        # The new resource exists already; the old one was to be destroyed after it.
        return shown.destroys and "create" in shown.actions
    # A resource whose creation was interrupted is replaced; a replaced one may be destroyed.
    return "create" in shown.actions and "create" in change.actions


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
            address = f"{address}{_DEPOSED}{deposed})"
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


def read_plan_text(text: str) -> Plan:
    """Reads what `plan` prints, without colours; it marks and hides sensitive values itself."""
    actions = {
        "created": ("create",),
        "updated in-place": ("update",),
        "destroyed": ("delete",),
        "replaced": ("delete", "create"),
        "imported": ("no-op",),
    }
    changes: list[ResourceChange] = []
    identity: list[str] = []
    lines = text.splitlines()
    for line in lines:
        if found := _CHANGE.match(line):
            is_imported = found["action"] == "imported"
            changes.append(ResourceChange(found["address"], actions[found["action"]], is_imported))
        if changes and line.strip():
            identity.append(line.rstrip())
    rest = lines[lines.index(_OUTPUTS) + 1 :] if _OUTPUTS in lines else []
    outputs = tuple(found["name"] for line in rest if (found := _OUTPUT.match(line)))
    identity += rest if not changes else []
    digest = hashlib.sha256("\n".join(identity).encode()).hexdigest()
    return Plan(tuple(changes), outputs, digest)


def _masked_sides(change: Mapping[str, Any]) -> tuple[object, ...]:
    return (
        masked(change.get("before"), change.get("before_sensitive")),
        masked(change.get("after"), change.get("after_sensitive")),
        change.get("after_unknown"),
    )


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
