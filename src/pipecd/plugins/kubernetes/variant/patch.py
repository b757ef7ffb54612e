# SPDX-License-Identifier: Apache-2.0
"""Patches of a canary: values at paths of a manifest, or of a document kept in one of its texts."""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from pipecd.plugins.kubernetes.manifest.body import text_at, with_value
from pipecd.plugins.kubernetes.manifest.manifest import Manifest
from pipecd.plugins.kubernetes.options import Patch, PatchOp
from pipecd.sdk import UserMistake
from pipecd.sdk.diff import is_list, is_map
from pipecd.sdk.yaml import read_documents, write_yaml

Step: TypeAlias = str | int
_NAME = r"(?:'[^']+'|[^.\['\n]+)"
_STEP = re.compile(rf"\.\.(?P<below>{_NAME})|\.(?P<child>{_NAME})|\[(?P<index>\d+)\]")
_ANYWHERE = ".."


def patched(manifests: Sequence[Manifest], patches: Iterable[Patch]) -> list[Manifest]:
    """Returns the manifests with the patches of a stage applied, in their order."""
    result = list(manifests)
    for patch in patches:
        index = _target(result, patch)
        result[index] = _patched(result[index], patch)
    return result


def _target(manifests: Sequence[Manifest], patch: Patch) -> int:
    for index, manifest in enumerate(manifests):
        if (manifest.kind, manifest.name) == (patch.target.kind, patch.target.name):
            return index
    raise UserMistake(
        f"no {patch.target.kind} {patch.target.name} to patch",
        hint="a patch names the kind and the name of a manifest of this application",
    )


def _patched(manifest: Manifest, patch: Patch) -> Manifest:
    where = f"patch of {patch.target.kind} {patch.target.name}"
    root = patch.target.document_root
    if not root:
        return manifest.with_body(_after_all(manifest.body, patch.ops, where))
    path = [str(step) for step in steps(root)]
    text = text_at(manifest.body, *path)
    if not text:
        raise UserMistake(f"{where}: documentRoot {root} is no text in the manifest")
    documents = read_documents(text, file=f"{where}, {root}")
    content = write_yaml(_after_all(documents[0].value if documents else None, patch.ops, where))
    return manifest.with_body(with_value(manifest.body, path, content))


def _after_all(document: Any, ops: Iterable[PatchOp], where: str) -> Any:
    for op in ops:
        if op.op != "yaml-replace":
            raise UserMistake(f"{where}: unknown op {op.op!r}, write yaml-replace")
        value = _scalar(op.value, where)
        document, count = _replaced(document, steps(op.path), lambda _, value=value: value)
        if not count:
            raise UserMistake(f"{where}: there is nothing at {op.path}")
    return document


def _scalar(text: str, where: str) -> Any:
    """Reads a value as if it stood unquoted in the manifest."""
    documents = read_documents(text, file=where)
    return documents[0].value if documents else None


def steps(path: str) -> list[Step]:
    """Takes a path such as `$.spec.ports[0]..name` apart; two dots mean anywhere below.

    A name with dots stands in single quotes.
    """
    text = path.removeprefix("$")
    text = text if text.startswith((".", "[")) or not text else f".{text}"
    found: list[Step] = []
    end = 0
    for match in _STEP.finditer(text):
        if match.start() != end:
            break
        end = match.end()
        if match["below"]:
            found += [_ANYWHERE, match["below"].strip("'")]
        elif match["child"]:
            found.append(match["child"].strip("'"))
        else:
            found.append(int(match["index"]))
    if end != len(text) or not found:
        raise UserMistake(f"{path!r} is no path", hint="write it like $.spec.ports[0].name")
    return found


def _replaced(value: Any, path: Sequence[Step], change: Callable[[Any], Any]) -> tuple[Any, int]:
    """Returns the document with every place of the path changed, and how many there were."""
    if not path:
        return change(value), 1
    step, rest = path[0], path[1:]
    if step == _ANYWHERE:
        here, count = _replaced(value, rest, change)
        return _below(here, lambda child: _replaced(child, path, change), count)
    if isinstance(step, int):
        if not is_list(value) or step >= len(value):
            return value, 0
        items: list[Any] = [*value]
        items[step], count = _replaced(items[step], rest, change)
        return items, count
    if not is_map(value) or step not in value:
        return value, 0
    entries: dict[str, Any] = dict(value)
    entries[step], count = _replaced(entries[step], rest, change)
    return entries, count


def _below(value: Any, change: Callable[[Any], tuple[Any, int]], count: int) -> tuple[Any, int]:
    if is_map(value):
        pairs = {key: change(child) for key, child in value.items()}
        return {key: new for key, (new, _) in pairs.items()}, count + sum(
            n for _, n in pairs.values()
        )
    if is_list(value):
        items = [change(child) for child in value]
        return [new for new, _ in items], count + sum(n for _, n in items)
    return value, count
