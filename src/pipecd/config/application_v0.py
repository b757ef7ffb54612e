# SPDX-License-Identifier: Apache-2.0
"""Application kinds of the first generation, translated into the form of plugins.

What is special about a kind is told by the plugin that took it over (`catalog.V0Kind`); this is
the frame: the fields beside the generic ones, the stages, and the rollback switch.
"""

from functools import cache
from typing import Any

from pydantic import create_model

from pipecd.config.application import (
    ApplicationSpec,
    PipelineSpec,
    SkipOn,
    StageNode,
    StageSpec,
    stage_nodes,
)
from pipecd.config.catalog import Catalog, Section, V0Kind, V0Stage
from pipecd.config.decode import Decoder, Level, entry_of, unknown_word
from pipecd.config.envelope import Generation
from pipecd.config.report import Path
from pipecd.config.spec import Spec
from pipecd.config.units import Duration
from pipecd.config.yaml_tree import Entry, Map, Node, Scalar

SPEC: Path = ("spec",)
MOVED = ("timeout", "skipOn")
"""The options that stand beside `with` in the form of plugins."""


@cache
def v0_type(fields: type[Spec]) -> type[ApplicationSpec]:
    """Return the type of a whole `spec`: the fields of a kind and the generic ones."""
    bases: Any = (fields, ApplicationSpec)
    created: Any = create_model(fields.__name__, __base__=bases)
    return created


class V0Reading:
    """Reads the `spec` of one v0 file."""

    def __init__(self, decoder: Decoder, catalog: Catalog, reader: Generation) -> None:
        self._decoder, self._catalog, self._reader = decoder, catalog, reader

    def application(self, spec: Node, kind: V0Kind[Any, Any]) -> ApplicationSpec | None:
        """Return the application in the form of plugins; None when something is wrong."""
        is_v0 = self._reader is Generation.V0
        # The first generation lets `plugins` be anything and reads nothing of it.
        node = _without(spec, "plugins") if is_v0 else spec
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
        return self._translated(read, kind, stages)

    def _options(self, stage: StageNode) -> "tuple[V0Stage[Any], Spec] | None":
        """Return how a stage is translated, with its options; None for a stage of a plugin."""
        wrong = Level.MISTAKE if self._reader is Generation.V0 else Level.WARNING
        known = self._catalog.v0_stages
        if stage.name in known:
            how, path = known[stage.name], (*stage.path, "with")
            options = self._decoder.decode(stage.options, how.options, path=path, wrong=wrong)
            return (how, options) if options else None
        what = f"unsupported stage name: {stage.name or 'none is given'}"
        if stage.name in self._catalog.stages:
            what += ", only files of kind Application may write it"
        else:
            what = unknown_word(what, stage.name, known)
        path = (*stage.path, "name")
        self._decoder.tell(what, at=stage.name_node.mark, path=path, level=wrong)
        return None

    def _stage(
        self, stage: StageSpec, translated: "tuple[V0Stage[Any], Spec] | None", limit: Duration
    ) -> StageSpec:
        if translated is None:
            return stage
        how, options = translated
        own: SkipOn = getattr(options, "skip_on", SkipOn())
        # A stage knows `skipOn` beside `with` in the second generation only.
        beside = stage.skip_on if self._reader is Generation.V1 else SkipOn()
        return stage.model_copy(
            update={
                "name": how.name or stage.name,
                "timeout": _timeout(stage, how, options, limit),
                "skip_on": own if own != SkipOn() else beside,
                "with_": _with(how, options),
            }
        )

    def _translated(
        self, read: ApplicationSpec, kind: V0Kind[Any, Any], stages: list[StageSpec]
    ) -> ApplicationSpec:
        names = frozenset(stage.name for stage in stages)
        fields = kind.spec.model_construct(
            read.model_fields_set & kind.spec.model_fields.keys(),
            **{name: getattr(read, name) for name in kind.spec.model_fields},
        )
        sections = {name: dict(s) for name, s in kind.translate(fields, names).items()}
        for name, written in read.plugins.items():
            # What is written for a plugin in its own form wins over what is translated for it.
            sections[name] = {**sections.get(name, {}), **written}
        generic = {name: getattr(read, name) for name in ApplicationSpec.model_fields}
        planner = read.planner
        if self._reader is Generation.V0 or "auto_rollback" not in planner.model_fields_set:
            planner = planner.model_copy(update={"auto_rollback": kind.auto_rollback(fields)})
        pipeline = PipelineSpec(stages=tuple(stages))
        return ApplicationSpec.model_construct(
            read.model_fields_set & ApplicationSpec.model_fields.keys(),
            **{**generic, "planner": planner, "pipeline": pipeline, "plugins": sections},
        )


def platform_of(decoder: Decoder, spec: Node, catalog: Catalog) -> V0Kind[Any, Any] | None:
    """Return the v0 kind of a file of kind Application, which its plugins tell."""
    plugins = entry_of(spec, "plugins")
    found: V0Kind[Any, Any] | None = None
    for entry in plugins.value if plugins and isinstance(plugins.value, Map) else ():
        kind = catalog.v0_kind_of_plugin(entry.key)
        if kind and found:
            what = f"multiple platform providers are not allowed: {entry.key}, leave one of them"
            decoder.tell(what, at=entry.mark, path=("spec", "plugins", entry.key))
        found = found or kind
    return found


def without_sections(decoder: Decoder, spec: Node) -> Node:
    """Return the `spec` of an Application as v0 reads it: the sections laid over its own keys."""
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
                decoder.tell("must be an object", at=section.value.mark, path=path)
    return Map(tuple(keys.values()), spec.mark)


def _without(spec: Node, key: str) -> Node:
    if not isinstance(spec, Map):
        return spec
    kept: list[Entry] = [entry for entry in spec if entry.key.lower() != key.lower()]
    return Map(tuple(kept), spec.mark)


def _timeout(stage: StageSpec, how: V0Stage[Any], options: Spec, limit: Duration) -> Duration:
    """Return the limit of a stage; one that writes none has that of the whole deployment."""
    if "timeout" in options.model_fields_set and "timeout" in type(options).model_fields:
        return getattr(options, "timeout")  # noqa: B009
    if "timeout" in stage.model_fields_set:
        return stage.timeout
    return how.timeout or limit


def _with(how: V0Stage[Any], options: Spec) -> Section:
    moved = {key for key in MOVED if key in _keys(options)}
    return {key: value for key, value in how.translate(options).items() if key not in moved}


def _keys(options: Spec) -> set[str]:
    return {info.alias or name for name, info in type(options).model_fields.items()}
