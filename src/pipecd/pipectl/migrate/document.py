# SPDX-License-Identifier: Apache-2.0
"""The file of an application of the first generation, written anew for the second."""

from collections.abc import Mapping
from typing import Any, cast

from pipecd.config.application_v0 import MOVED
from pipecd.model.errors import UserMistake

_COMMON = (
    "name",
    "labels",
    "description",
    "planner",
    "commitMatcher",
    "trigger",
    "postSync",
    "timeout",
    "encryption",
    "attachment",
    "notification",
    "eventWatcher",
    "driftDetection",
)
_KUBERNETES = "KubernetesApp"
_PLUGINS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    _KUBERNETES: (
        "kubernetes",
        (
            "input",
            "quickSync",
            "service",
            "workloads",
            "trafficRouting",
            "variantLabel",
            "resourceRoutes",
        ),
    ),
    "TerraformApp": ("terraform", ("input", "quickSync")),
    "ECSApp": ("ecs", ("input", "quickSync")),
    "LambdaApp": ("lambda", ("input", "quickSync")),
    "CloudRunApp": ("cloudrun", ("input", "quickSync")),
}


def second_generation(document: object) -> dict[str, Any]:
    """The same application with plugins; what a plugin does not know is left out."""
    old = _mapping(document, "the file")
    kind = str(old.get("kind", ""))
    if kind not in _PLUGINS:
        raise UserMistake(
            f"unsupported application kind: {kind}", hint=f"use one of {', '.join(_PLUGINS)}"
        )
    spec = _mapping(old.get("spec"), "spec")
    plugin, keys = _PLUGINS[kind]
    plugins: dict[str, Any] = {plugin: _picked(spec, keys)}
    stages = _stages(spec)
    if kind == _KUBERNETES and any(stage.get("name") == "ANALYSIS" for stage in stages):
        namespace = _mapping(spec.get("input") or {}, "spec.input").get("namespace") or "default"
        plugins["analysis"] = {"appCustomArgs": {"k8sNamespace": namespace}}
    new = {**_picked(spec, _COMMON), "plugins": plugins}
    if stages:
        new["pipeline"] = {"stages": stages}
    return {"apiVersion": "pipecd.dev/v1beta1", "kind": "Application", "spec": new}


def _stages(spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The stages; what was an option of some and is now one of every stage is told twice."""
    pipeline = _mapping(spec.get("pipeline") or {}, "spec.pipeline")
    listed: object = pipeline.get("stages") or []
    if not isinstance(listed, list):
        raise UserMistake("spec.pipeline.stages is not a list")
    stages: list[dict[str, Any]] = []
    for index, stage in enumerate(cast("list[object]", listed)):
        where = f"spec.pipeline.stages[{index}]"
        own = dict(_mapping(stage, where))
        options = _mapping(own.get("with") or {}, f"{where}.with")
        stages.append({**own, **_picked(options, MOVED)})
    return stages


def _picked(source: Mapping[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: source[key] for key in keys if key in source}


def _mapping(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise UserMistake(f"{where} is missing or not a map", hint="is this an application file?")
    return cast("Mapping[str, Any]", value)
