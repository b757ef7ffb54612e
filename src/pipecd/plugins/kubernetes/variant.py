# SPDX-License-Identifier: Apache-2.0
"""Builds the objects of canary and baseline, and applies the patches of a canary."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from pipecd.plugins.kubernetes.config import Patch, PatchOp
from pipecd.plugins.kubernetes.manifest import Manifest
from pipecd.plugins.kubernetes.workload import with_renamed_config
from pipecd.sdk import UserMistake
from pipecd.sdk.config import Replicas
from pipecd.sdk.diff import is_list, is_map
from pipecd.sdk.unstructured import (
    map_at,
    text_at,
    with_entries,
    with_value,
    without,
)
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
        desired: Any = map_at(manifest.body, "spec").get("replicas", 1)
        desired = 1 if desired is None else desired
        if not isinstance(desired, int) or isinstance(desired, bool):
            raise UserMistake(
                f"{manifest.key}: spec.replicas must be a whole number, not {desired!r}"
            )
        copied = {(config.kind, config.name) for config in copied_config}
        body = with_renamed_config(
            manifest.body,
            lambda kind, name: self.name(name) if (kind, name) in copied else name,
        )
        body = with_value(body, ("spec", "replicas"), replicas.of(desired, default=1))
        labelled = with_selector_label(manifest.with_body(body), self.label, self.value)
        return labelled.named(self.name(manifest.name))


Step: TypeAlias = str | int
_NAME = r"(?:'[^']+'|[^.\['\n]+)"
_STEP = re.compile(rf"\.\.(?P<below>{_NAME})|\.(?P<child>{_NAME})|\[(?P<index>\d+)\]")
_ANYWHERE = ".."


def apply_patches(manifests: Sequence[Manifest], patches: Iterable[Patch]) -> list[Manifest]:
    """Returns the manifests with the patches of a stage applied, in their order."""
    result = list(manifests)
    for patch in patches:
        target = patch.target
        keys = [(manifest.kind, manifest.name) for manifest in result]
        if (target.kind, target.name) not in keys:
            raise UserMistake(
                f"no {target.kind} {target.name} to patch",
                hint="a patch names the kind and the name of a manifest of this application",
            )
        index = keys.index((target.kind, target.name))
        result[index] = _apply_patch(result[index], patch)
    return result


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
        # The value is parsed as if it were unquoted in the manifest.
        values = read_documents(op.value, file=context)
        value = values[0].value if values else None
        matches = list(_matches(document, steps(op.path)))
        if not matches:
            raise UserMistake(f"{context}: there is nothing at {op.path}")
        for match in reversed(matches):
            document = _with_item(document, match, value)
    return document


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


def _matches(document: Any, path: Sequence[Step]) -> Iterator[tuple[Step, ...]]:
    """Yields the keys and indices of all matches of a path, outer matches before inner ones."""
    if not path:
        yield ()
        return
    step, rest = path[0], path[1:]
    children: dict[Step, Any] = {}
    if is_map(document):
        children = {**document}
    elif is_list(document):
        children = dict(enumerate(document))
    if step == _ANYWHERE:
        yield from _matches(document, rest)
        rest = path
    elif step in children:
        children = {step: children[step]}
    else:
        return
    for key, child in children.items():
        for match in _matches(child, rest):
            yield key, *match


def _with_item(document: Any, path: tuple[Step, ...], value: Any) -> Any:
    """Returns a copy of a document with another value at the keys and indices of a path."""
    if not path:
        return value
    copy: Any = {**document} if is_map(document) else [*document]
    copy[path[0]] = _with_item(copy[path[0]], path[1:], value)
    return copy
