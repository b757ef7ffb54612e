# SPDX-License-Identifier: Apache-2.0
"""Translates v0 application kinds, such as KubernetesApp, to plugin settings.

The plugin of a kind declares how its fields are translated (`catalog.V0Kind`). This module applies
the declaration and translates what all kinds have: stages and the rollback switch.
"""

from functools import cache
from typing import Any

from pydantic import create_model

from pipecd.config.application import (
    ApplicationSpec,
    PipelineSpec,
    PlannerSpec,
    SkipOn,
    StageNode,
    StageSpec,
    stage_nodes,
)
from pipecd.config.catalog import Catalog, V0Kind, V0Stage
from pipecd.config.decode import Decoder, Level, entry_of, unknown_word
from pipecd.config.envelope import Generation
from pipecd.config.report import Path
from pipecd.config.spec import Spec
from pipecd.config.units import Duration
from pipecd.config.yaml_tree import Map, Node, Scalar

SPEC: Path = ("spec",)
STAGE_FIELDS = ("timeout", "skipOn")
"""The options that are fields of the stage itself, beside `with`, in v1."""


@cache
def v0_type(fields: type[Spec]) -> type[ApplicationSpec]:
    """Return the type of a whole `spec`: the fields of a kind together with the generic ones."""
    bases: Any = (fields, ApplicationSpec)
    created: Any = create_model(fields.__name__, __base__=bases)
    return created


class V0ApplicationDecoder:
    """Decodes the `spec` of one v0 application file."""

    def __init__(self, decoder: Decoder, catalog: Catalog, reader: Generation) -> None:
        self._decoder, self._catalog, self._reader = decoder, catalog, reader

    def decode(self, spec: Node, kind: V0Kind[Any, Any]) -> ApplicationSpec | None:
        """Return the application with plugin settings, or None if it is invalid."""
        node = spec
        if self._reader is Generation.V0 and isinstance(spec, Map):
            # A v0 piped ignores `plugins`, whatever its value is.
            node = Map(tuple(e for e in spec if e.key.lower() != "plugins"), spec.mark)
        read = self._decoder.decode(
            node, v0_type(kind.spec), path=SPEC, unknown=self._reader.unknown
        )
        options = [self._options(stage) for stage in stage_nodes(spec)]
        if read is None:
            return None
        stages = [
            self._stage(stage, translated, read.timeout)
            for stage, translated in zip(read.pipeline.stages, options, strict=True)
        ]
        return self._application(read, kind, stages)

    def _options(self, stage: StageNode) -> "tuple[V0Stage[Any], Spec] | None":
        """Return the translation of a stage and its options; None for a stage of a plugin."""
        wrong = Level.MISTAKE if self._reader is Generation.V0 else Level.UNPLANNABLE
        v0_stages = self._catalog.v0_stages
        if stage.name in v0_stages:
            v0_stage, path = v0_stages[stage.name], (*stage.path, "with")
            options = self._decoder.decode(stage.options, v0_stage.options, path=path, wrong=wrong)
            return (v0_stage, options) if options else None
        if stage.name in self._catalog.stages and self._reader is Generation.V1:
            plugin_options, path = self._catalog.stages[stage.name], (*stage.path, "with")
            self._decoder.decode(stage.options, plugin_options, path=path, wrong=wrong)
            return None
        what = f"unsupported stage name: {stage.name or 'none is given'}"
        if stage.name in self._catalog.stages:
            what += ", only files of kind Application may use it"
        else:
            what = unknown_word(what, stage.name, v0_stages)
        path = (*stage.path, "name")
        # A piped of the newer generation may have a plugin with this stage that is unknown here.
        level = wrong if self._reader is Generation.V0 else Level.WARNING
        self._decoder.add(what, at=stage.name_node.mark, path=path, level=level)
        return None

    def _stage(
        self, stage: StageSpec, translated: "tuple[V0Stage[Any], Spec] | None", timeout: Duration
    ) -> StageSpec:
        """Return a stage as its plugin reads it; `timeout` is that of the deployment."""
        if translated is None:
            return stage
        v0_stage, options = translated
        fields = type(options).model_fields
        if "timeout" in options.model_fields_set and "timeout" in fields:
            timeout = getattr(options, "timeout")  # noqa: B009
        elif "timeout" in stage.model_fields_set:
            timeout = stage.timeout
        else:
            timeout = v0_stage.timeout or timeout
        skip_on: SkipOn = getattr(options, "skip_on", SkipOn())
        # Only v1 reads `skipOn` beside `with`.
        if skip_on == SkipOn() and self._reader is Generation.V1:
            skip_on = stage.skip_on
        moved = {info.alias or name for name, info in fields.items()}.intersection(STAGE_FIELDS)
        settings = v0_stage.translate(options)
        return stage.model_copy(
            update={
                "name": v0_stage.name or stage.name,
                "timeout": timeout,
                "skip_on": skip_on,
                "with_": {key: value for key, value in settings.items() if key not in moved},
            }
        )

    def _application(
        self, read: ApplicationSpec, kind: V0Kind[Any, Any], stages: list[StageSpec]
    ) -> ApplicationSpec:
        names = frozenset(stage.name for stage in stages)
        fields = kind.spec.model_construct(
            read.model_fields_set & kind.spec.model_fields.keys(),
            **{name: getattr(read, name) for name in kind.spec.model_fields},
        )
        generic = {name: getattr(read, name) for name in ApplicationSpec.model_fields}
        sections: dict[str, dict[str, Any]] = {}
        planner = read.planner
        # A file that has only sections of plugins is one of v1 but for its kind.
        if not read.plugins or fields.model_fields_set:
            sections = {name: dict(s) for name, s in kind.translate(fields, names).items()}
            if self._reader is Generation.V0 or "auto_rollback" not in planner.model_fields_set:
                planner = planner.model_copy(update={"auto_rollback": kind.auto_rollback(fields)})
            if kind.always_uses_pipeline:
                # It does not count as set, and the summary of a deployment does not say so.
                planner = PlannerSpec.model_construct(
                    planner.model_fields_set, **{**dict(planner), "always_use_pipeline": True}
                )
        for name, section in read.plugins.items():
            # Settings under `plugins` override translated ones.
            sections[name] = {**sections.get(name, {}), **section}
        pipeline = PipelineSpec(stages=tuple(stages))
        return ApplicationSpec.model_construct(
            read.model_fields_set & ApplicationSpec.model_fields.keys(),
            **{**generic, "planner": planner, "pipeline": pipeline, "plugins": sections},
        )


def v0_kind_of(decoder: Decoder, spec: Node, catalog: Catalog) -> V0Kind[Any, Any] | None:
    """Return the v0 kind of a file of kind Application, by the names under its `plugins`."""
    plugins = entry_of(spec, "plugins")
    result: V0Kind[Any, Any] | None = None
    for entry in plugins.value if plugins and isinstance(plugins.value, Map) else ():
        kind = catalog.v0_kind_of_plugin(entry.key)
        if kind and result:
            what = f"multiple platform providers are not allowed: {entry.key}, keep one of them"
            decoder.add(what, at=entry.mark, path=("spec", "plugins", entry.key))
        result = result or kind
    return result


def without_sections(decoder: Decoder, spec: Node) -> Node:
    """Return the `spec` of an Application as v0 reads it: plugin sections override its keys."""
    plugins = entry_of(spec, "plugins")
    if not isinstance(spec, Map) or not plugins or not isinstance(plugins.value, Map):
        return spec
    keys = {entry.key: entry for entry in spec}
    for section in plugins.value:
        match section.value:
            case Map():
                keys |= {entry.key: entry for entry in section.value}
            case Scalar(value=None):
                pass
            case _:
                path = ("spec", "plugins", section.key)
                decoder.add("must be an object", at=section.value.mark, path=path)
    return Map(tuple(keys.values()), spec.mark)
