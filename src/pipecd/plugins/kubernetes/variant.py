# SPDX-License-Identifier: Apache-2.0
"""Builds the objects of canary and baseline, and applies the patches of a canary."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from pipecd.plugins.kubernetes.config import Patch, PatchOp
from pipecd.plugins.kubernetes.manifest import Manifest
from pipecd.plugins.kubernetes.unstructured import (
    map_at,
    text_at,
    with_entries,
    with_value,
    without,
)
from pipecd.plugins.kubernetes.workload import with_renamed_config
from pipecd.sdk import UserMistake
from pipecd.sdk.config import Replicas
from pipecd.sdk.diff import is_list, is_map
from pipecd.sdk.yaml import read_documents, write_yaml

SELECTOR = ("spec", "selector", "matchLabels")
POD_LABELS = ("spec", "template", "metadata", "labels")


def with_selector_label(manifest: Manifest, key: str, value: str) -> Manifest:
    """Returns a workload with the label in its selector and on its pods."""
    body = with_entries(manifest.body, SELECTOR, {key: value})
    return manifest.with_body(with_entries(body, POD_LABELS, {key: value}))


def require_selector_label(workloads: Sequence[Manifest], key: str, value: str) -> None:
    """Refuses workloads that a Service with the label in its selector would not select."""
    for manifest in workloads:
        for path in (SELECTOR, POD_LABELS):
            if text_at(manifest.body, *path, key) != value:
                raise UserMistake(
                    f"{manifest.key} lacks {key}: {value} in {'.'.join(path)}",
                    hint="add the label in Git, or set addVariantLabelToSelector: true",
                )


_EXTERNAL_FIELDS = ("externalIPs", "loadBalancerIP", "loadBalancerSourceRanges")


@dataclass(frozen=True)
class VariantBuilder:
    """Builds the objects of a variant: their names, and the label of their pods."""

    label: str
    value: str
    suffix: str

    def name(self, name: str) -> str:
        """Returns the name of an object in this variant."""
        return f"{name}-{self.suffix}"

    def service(self, manifest: Manifest) -> Manifest:
        """Returns a ClusterIP Service that selects the pods of this variant only."""
        body = with_entries(manifest.body, ("spec", "selector"), {self.label: self.value})
        body = with_value(body, ("spec", "type"), "ClusterIP")
        for field in _EXTERNAL_FIELDS:
            body = without(body, "spec", field)
        # Two Services cannot share an address or a node port.
        if map_at(body, "spec").get("clusterIP") != "None":
            body = without(without(body, "spec", "clusterIP"), "spec", "clusterIPs")
        ports = [
            {key: value for key, value in port.items() if key != "nodePort"}
            for port in map_at(body, "spec").get("ports") or ()
        ]
        if ports:
            body = with_value(body, ("spec", "ports"), ports)
        return manifest.with_body(body).named(self.name(manifest.name))

    def config(self, manifest: Manifest) -> Manifest:
        """Returns a copy of a ConfigMap or a Secret for this variant."""
        return manifest.named(self.name(manifest.name))

    def workload(
        self, manifest: Manifest, replicas: Replicas, copied_config: Sequence[Manifest] = ()
    ) -> Manifest:
        """Returns a Deployment of this variant that uses the copied ConfigMaps and Secrets."""
        if not manifest.is_builtin("apps", "Deployment"):
            raise UserMistake(
                f"{manifest.key} cannot have a variant",
                hint="only a Deployment can; name the Deployments at spec.workloads",
            )
        body = with_renamed_config(manifest.body, self._rename(copied_config))
        count = replicas.of(_desired_replicas(manifest), default=1)
        body = with_value(body, ("spec", "replicas"), count)
        labelled = with_selector_label(manifest.with_body(body), self.label, self.value)
        return labelled.named(self.name(manifest.name))

    def _rename(self, copied_config: Sequence[Manifest]) -> Callable[[str, str], str]:
        copied_names = {(manifest.kind, manifest.name) for manifest in copied_config}
        return lambda kind, name: self.name(name) if (kind, name) in copied_names else name


def _desired_replicas(manifest: Manifest) -> int:
    value: Any = map_at(manifest.body, "spec").get("replicas")
    if value is None:
        return 1
    if not isinstance(value, int) or isinstance(value, bool):
        raise UserMistake(f"{manifest.key}: spec.replicas must be a whole number, not {value!r}")
    return value


Step: TypeAlias = str | int
_NAME = r"(?:'[^']+'|[^.\['\n]+)"
_STEP = re.compile(rf"\.\.(?P<below>{_NAME})|\.(?P<child>{_NAME})|\[(?P<index>\d+)\]")
_ANYWHERE = ".."


def apply_patches(manifests: Sequence[Manifest], patches: Iterable[Patch]) -> list[Manifest]:
    """Returns the manifests with the patches of a stage applied, in their order."""
    result = list(manifests)
    for patch in patches:
        index = _find_target(result, patch)
        result[index] = _apply_patch(result[index], patch)
    return result


def _find_target(manifests: Sequence[Manifest], patch: Patch) -> int:
    for index, manifest in enumerate(manifests):
        if (manifest.kind, manifest.name) == (patch.target.kind, patch.target.name):
            return index
    raise UserMistake(
        f"no {patch.target.kind} {patch.target.name} to patch",
        hint="a patch names the kind and the name of a manifest of this application",
    )


def _apply_patch(manifest: Manifest, patch: Patch) -> Manifest:
    context = f"patch of {patch.target.kind} {patch.target.name}"
    root = patch.target.document_root
    if not root:
        return manifest.with_body(_apply_ops(manifest.body, patch.ops, context))
    path = [str(step) for step in steps(root)]
    text = text_at(manifest.body, *path)
    if not text:
        raise UserMistake(f"{context}: documentRoot {root} is no text in the manifest")
    documents = read_documents(text, file=f"{context}, {root}")
    content = write_yaml(_apply_ops(documents[0].value if documents else None, patch.ops, context))
    return manifest.with_body(with_value(manifest.body, path, content))


def _apply_ops(document: Any, ops: Iterable[PatchOp], context: str) -> Any:
    for op in ops:
        if op.op != "yaml-replace":
            raise UserMistake(f"{context}: unknown op {op.op!r}, write yaml-replace")
        value = _scalar(op.value, context)
        document, count = _replace(document, steps(op.path), lambda _, value=value: value)
        if not count:
            raise UserMistake(f"{context}: there is nothing at {op.path}")
    return document


def _scalar(text: str, context: str) -> Any:
    """Parses a value as if it were unquoted in the manifest."""
    documents = read_documents(text, file=context)
    return documents[0].value if documents else None


def steps(path: str) -> list[Step]:
    """Parses a path such as `$.spec.ports[0]..name`; two dots mean any depth.

    A name with dots is in single quotes.
    """
    text = path.removeprefix("$")
    text = text if text.startswith((".", "[")) or not text else f".{text}"
    path_steps: list[Step] = []
    end = 0
    for match in _STEP.finditer(text):
        if match.start() != end:
            break
        end = match.end()
        if match["below"]:
            path_steps += [_ANYWHERE, match["below"].strip("'")]
        elif match["child"]:
            path_steps.append(match["child"].strip("'"))
        else:
            path_steps.append(int(match["index"]))
    if end != len(text) or not path_steps:
        raise UserMistake(f"{path!r} is no path", hint="write it like $.spec.ports[0].name")
    return path_steps


def _replace(value: Any, path: Sequence[Step], transform: Callable[[Any], Any]) -> tuple[Any, int]:
    """Returns the document with all matches of a path replaced, and their number."""
    if not path:
        return transform(value), 1
    step, rest = path[0], path[1:]
    if step == _ANYWHERE:
        here, count = _replace(value, rest, transform)
        return _replace_in_children(here, lambda child: _replace(child, path, transform), count)
    if isinstance(step, int):
        if not is_list(value) or step >= len(value):
            return value, 0
        items: list[Any] = [*value]
        items[step], count = _replace(items[step], rest, transform)
        return items, count
    if not is_map(value) or step not in value:
        return value, 0
    entries: dict[str, Any] = dict(value)
    entries[step], count = _replace(entries[step], rest, transform)
    return entries, count


def _replace_in_children(
    value: Any, transform: Callable[[Any], tuple[Any, int]], count: int
) -> tuple[Any, int]:
    if is_map(value):
        pairs = {key: transform(child) for key, child in value.items()}
        return {key: new for key, (new, _) in pairs.items()}, count + sum(
            n for _, n in pairs.values()
        )
    if is_list(value):
        items = [transform(child) for child in value]
        return [new for new, _ in items], count + sum(n for _, n in items)
    return value, count
