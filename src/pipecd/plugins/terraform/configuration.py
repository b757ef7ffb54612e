# SPDX-License-Identifier: Apache-2.0
"""What piped reads in the files of a Terraform configuration.

The modules are the versions of the application. The values of sensitive variables must not appear
in any output, and are known before Terraform has read them.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from pipecd.sdk import ArtifactKind, Source, UserMistake, Version
from pipecd.sdk.files import read_contained
from pipecd.sdk.hcl import ListNode, Node, ObjectNode, ReadOnlyNode, ValueNode, parse_hcl

_SUFFIXES = ("*.tf", "*.tofu")


def module_versions(source: Source) -> list[Version]:
    """Returns a version for each `module` block in the files of an application."""
    files = sorted(_files(source))
    if not files:
        raise UserMistake(
            "there are no Terraform files (*.tf) in the directory of the application",
            hint="add some, or correct the path of the application",
        )
    versions: list[Version] = []
    for file in files:
        try:
            versions += modules_of(_read(source, file))
        except UnicodeDecodeError as e:
            raise UserMistake(f"{file.name} is not valid UTF-8") from e
        except UserMistake as e:
            raise UserMistake(f"{file.name}: {e.message}", hint=e.hint) from e
    return versions


def modules_of(text: str) -> list[Version]:
    """Returns a version for each `module` block of a file."""
    return [
        Version(
            _text(body, "version", label),
            name=label,
            url=_text(body, "source", label),
            kind=ArtifactKind.TERRAFORM_MODULE,
        )
        for root in parse_hcl(text)
        for modules in _values(root, "module")
        for label, node in _entries(modules)
        for body in _each(node)
    ]


def given_secrets(source: Source, var_files: Iterable[str], variables: Iterable[str]) -> set[str]:
    """Returns the values of sensitive variables: those in files, and `variables` (`name=value`).

    A file that cannot be read is left to Terraform, which explains why.
    """
    directory = source.application_directory
    names = {name for file in _files(source) for name in _sensitive_names(_nodes(source, file))}
    if not names:
        return set()
    pairs = (variable.partition("=") for variable in variables)
    found = {value for name, _, value in pairs if name in names}
    named = [directory / file for file in (*var_files, "terraform.tfvars")]
    for file in (*named, *directory.glob("*.auto.tfvars")):
        for root in _nodes(source, file):
            for name, value in _entries(root):
                if name in names:
                    found |= set(_plain_texts(value))
    return found


def _sensitive_names(roots: Iterable[Node]) -> Iterator[str]:
    for root in roots:
        for variables in _values(root, "variable"):
            for name, body in _entries(variables):
                for value in _values(body, "sensitive"):
                    if isinstance(value, ValueNode) and value.value == "true":
                        yield name


def _plain_texts(node: Node) -> Iterator[str]:
    match node:
        case ValueNode():
            yield node.value
        case ObjectNode():
            for _, value in node.entries:
                yield from _plain_texts(value)
        case ListNode():
            for item in node.items:
                yield from _plain_texts(item)
        case ReadOnlyNode():
            return


def _files(source: Source) -> list[Path]:
    return [file for suffix in _SUFFIXES for file in source.application_directory.glob(suffix)]


def _nodes(source: Source, file: Path) -> list[Node]:
    with suppress(UserMistake, OSError, UnicodeDecodeError):
        return parse_hcl(_read(source, file))
    return []


def _read(source: Source, file: Path) -> str:
    return read_contained(source.working_copy, file).decode()


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
