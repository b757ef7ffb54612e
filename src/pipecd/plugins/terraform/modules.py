# SPDX-License-Identifier: Apache-2.0
"""The modules that a Terraform configuration uses, which are the versions of the application."""

from collections.abc import Iterator
from pathlib import Path

from pipecd.sdk import UserMistake, Version
from pipecd.sdk.hcl import ListNode, Node, ObjectNode, ReadOnlyNode, ValueNode, parse_hcl


def module_versions(directory: Path) -> list[Version]:
    """Returns a version for each `module` block in the `*.tf` files of a directory."""
    files = sorted(directory.glob("*.tf"))
    if not files:
        raise UserMistake(
            "there are no Terraform files (*.tf) in the directory of the application",
            hint="add some, or correct the path of the application",
        )
    versions: list[Version] = []
    for file in files:
        try:
            versions += modules_of(file.read_text())
        except UnicodeDecodeError as e:
            raise UserMistake(f"{file.name} is not valid UTF-8") from e
        except UserMistake as e:
            raise UserMistake(f"{file.name}: {e.message}", hint=e.hint) from e
    return versions


def modules_of(text: str) -> list[Version]:
    """Returns a version for each `module` block of a file."""
    return [
        Version(_text(body, "version", label), name=label, url=_text(body, "source", label))
        for root in parse_hcl(text)
        for modules in _values(root, "module")
        for label, node in _entries(modules)
        for body in _each(node)
    ]


def _text(body: Node, key: str, module: str) -> str:
    for value in _values(body, key):
        match value:
            case ValueNode():
                return value.value
            case ReadOnlyNode() | ObjectNode() | ListNode():
                raise UserMistake(f"{key} of module {module} must be a plain text")
    return ""


def _values(node: Node, key: str) -> Iterator[Node]:
    return (value for name, value in _entries(node) if name == key)


def _entries(node: Node) -> Iterator[tuple[str, Node]]:
    for each in _each(node):
        if isinstance(each, ObjectNode):
            yield from each.entries


def _each(node: Node) -> Iterator[Node]:
    """Yields the values of a name that occurs several times, else the node itself."""
    if isinstance(node, ListNode) and node.is_same_name:
        yield from node.items
    else:
        yield node
