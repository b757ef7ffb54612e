# SPDX-License-Identifier: Apache-2.0
"""JSON Schema of every kind of file, for editors, out of the types that read them.

A schema is closed where the reader is lenient: an editor should underline an unknown key even in
a file that loads.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from pipecd.config.application import ApplicationSpec, EventWatcherFileSpec, StageSpec
from pipecd.config.application_v0 import v0_type
from pipecd.config.catalog import Catalog, PluginConfig
from pipecd.config.controlplane import ControlPlaneSpec
from pipecd.config.decode import AnyType, UnitType, fields_of
from pipecd.config.envelope import API_VERSION
from pipecd.config.piped import PipedSpec, PlatformProviderSpec, PluginSpec, V0PipedSpec
from pipecd.config.read import APPLICATION, CONTROL_PLANE, EVENT_WATCHER, PIPED
from pipecd.config.spec import Spec
from pipecd.model.errors import NotFound

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_NULL = {"type": "null"}
_FIELD_ERRORS = ("missing", "value_error")


def kinds_of(catalog: Catalog) -> tuple[str, ...]:
    """Return the kinds that have a schema."""
    return (APPLICATION, *catalog.v0_kinds, PIPED, CONTROL_PLANE, EVENT_WATCHER, *catalog.kinds)


def schema_of(kind: str, catalog: Catalog) -> dict[str, Any]:
    """Return the JSON Schema of a whole file of one kind; raise NotFound for an unknown one."""
    specs = _types_of(kind, catalog)
    if not specs:
        hint = f"use one of {', '.join(kinds_of(catalog))}"
        raise NotFound(f"no configuration file has the kind {kind}", hint=hint)
    generator = _EditorSchema(catalog, is_v0=catalog.v0_kind(kind) is not None)
    refs, definitions = generator.generate_definitions(
        [(spec.__name__, "validation", spec.__pydantic_core_schema__) for spec in specs]
    )
    body = [refs[spec.__name__, "validation"] for spec in specs]
    return {
        "$schema": DIALECT,
        "title": f"PipeCD {kind}",
        "type": "object",
        "required": ["apiVersion", "kind"],
        "additionalProperties": False,
        "properties": {
            "apiVersion": {"const": API_VERSION},
            "kind": {"const": kind},
            "spec": {"anyOf": [body[0] if len(body) == 1 else _by_generation(*body), _NULL]},
        },
        "$defs": definitions,
    }


def _types_of(kind: str, catalog: Catalog) -> tuple[type[Spec], ...]:
    """Return the types of `spec`: two for Piped, which has two generations."""
    v0 = catalog.v0_kind(kind)
    if v0:
        return (v0_type(v0.spec),)
    known: dict[str, tuple[type[Spec], ...]] = {
        APPLICATION: (ApplicationSpec,),
        PIPED: (V0PipedSpec, PipedSpec),
        CONTROL_PLANE: (ControlPlaneSpec,),
        EVENT_WATCHER: (EventWatcherFileSpec,),
        **{name: (spec,) for name, spec in catalog.kinds.items()},
    }
    return known.get(kind, ())


def _by_generation(v0: JsonSchemaValue, v1: JsonSchemaValue) -> JsonSchemaValue:
    only_v0 = fields_of(V0PipedSpec).keys() - fields_of(PipedSpec).keys()
    return {"if": {"anyOf": [{"required": [k]} for k in sorted(only_v0)]}, "then": v0, "else": v1}


class _EditorSchema(GenerateJsonSchema):
    """Closes objects, lets null stand for absence, and ties options to the names they go with."""

    def __init__(self, catalog: Catalog, *, is_v0: bool) -> None:
        super().__init__(by_alias=True)
        self._catalog, self._is_v0 = catalog, is_v0

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        described, spec = super().model_schema(schema), schema["cls"]
        if not issubclass(spec, Spec):
            return described
        described.pop("title", None)
        described["additionalProperties"] = False
        if required := _required(spec):
            described["required"] = required
        properties: dict[str, Any] = described.setdefault("properties", {})
        for key, field in fields_of(spec).items():
            if key in properties:
                is_nullable = not isinstance(field.shape, UnitType | AnyType)
                properties[key] = _property(properties[key], is_nullable=is_nullable)
        self._tie(spec, described, properties)
        return described

    def _tie(
        self, spec: type[Spec], described: JsonSchemaValue, properties: dict[str, Any]
    ) -> None:
        """Add what a name says about the values beside it."""
        if issubclass(spec, ApplicationSpec):
            properties["plugins"] = {} if self._is_v0 else self._sections()
        elif spec is StageSpec:
            stages = self._stages()
            known = {"enum": sorted(stages)} if self._is_v0 else {"examples": sorted(stages)}
            properties["name"] = {"type": "string", **known}
            described["allOf"] = _ties("name", {n: {"with": s} for n, s in stages.items()})
        elif spec is PluginSpec:
            plugins = {plugin.name: self._plugin(plugin) for plugin in self._catalog.plugins}
            described["allOf"] = _ties("name", plugins)
        elif spec is PlatformProviderSpec:
            kinds = [plugin.v0 for plugin in self._catalog.plugins if plugin.v0]
            configs = {k.provider_type: {"config": self._ref(k.provider_config)} for k in kinds}
            properties["type"] = {"enum": sorted(configs)}
            described["allOf"] = _ties("type", configs)

    def _sections(self) -> JsonSchemaValue:
        plugins = [p for p in self._catalog.plugins if p.application]
        return {
            "type": ["object", "null"],
            "properties": {p.name: self._ref(p.application) for p in plugins},
            "additionalProperties": {"type": ["object", "null"]},
        }

    def _stages(self) -> dict[str, JsonSchemaValue]:
        if self._is_v0:
            return {name: self._ref(s.options) for name, s in self._catalog.v0_stages.items()}
        return {name: self._ref(options) for name, options in self._catalog.stages.items()}

    def _plugin(self, plugin: PluginConfig) -> dict[str, JsonSchemaValue]:
        parts = {"config": self._ref(plugin.piped)} if plugin.piped else {}
        if plugin.deploy_target:
            config = {"properties": {"config": self._ref(plugin.deploy_target)}}
            parts["deployTargets"] = {"items": config}
        return parts

    def _ref(self, spec: type[Spec] | None) -> JsonSchemaValue:
        schema: CoreSchema | None = spec.__pydantic_core_schema__ if spec else None
        return {"anyOf": [self.generate_inner(schema), _NULL]} if schema else {}


def _ties(key: str, values: Mapping[str, Mapping[str, JsonSchemaValue]]) -> list[JsonSchemaValue]:
    return [
        {
            "if": {"properties": {key: {"const": name}}, "required": [key]},
            "then": {"properties": dict(properties)},
        }
        for name, properties in sorted(values.items())
        if properties
    ]


def _property(described: JsonSchemaValue, *, is_nullable: bool) -> JsonSchemaValue:
    """Return a property without defaults that only repeat those further in."""
    default = described.get("default")
    if default is None or default == "" or isinstance(default, dict | list):
        described = {key: value for key, value in described.items() if key != "default"}
    options: Iterable[JsonSchemaValue] = described.get("anyOf", ())
    if not is_nullable or _NULL in options:
        return described
    if isinstance(described.get("type"), str) and "enum" not in described:
        return {**described, "type": [described["type"], "null"]}
    return {"anyOf": [described, _NULL]}


def _required(spec: type[Spec]) -> list[str]:
    """Return the keys without which a part is refused."""
    try:
        spec.model_validate({}, by_alias=True, by_name=False)
    except ValidationError as e:
        errors = [error for error in e.errors(include_url=False) if len(error["loc"]) == 1]
        # Pydantic names an absent field by its attribute or by its key.
        absent = {error["loc"][0] for error in errors if error["type"] in _FIELD_ERRORS}
        return [key for key, f in fields_of(spec).items() if {key, f.name} & absent]
    return []
