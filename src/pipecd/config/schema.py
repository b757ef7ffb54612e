# SPDX-License-Identifier: Apache-2.0
"""JSON Schemas of configuration files for editors, generated from the configuration types.

A schema is stricter than the reader: an editor should mark an unknown key even if the file loads.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from pipecd.config.application import ApplicationSpec, EventWatcherFileSpec, StageSpec
from pipecd.config.application_v0 import v0_type
from pipecd.config.catalog import Catalog
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
    """Return the JSON Schema of a file of a kind; raise NotFound for an unknown kind."""
    v0 = catalog.v0_kind(kind)
    types: dict[str, tuple[type[Spec], ...]] = {
        APPLICATION: (ApplicationSpec,),
        PIPED: (V0PipedSpec, PipedSpec),
        CONTROL_PLANE: (ControlPlaneSpec,),
        EVENT_WATCHER: (EventWatcherFileSpec,),
        **{name: (spec,) for name, spec in catalog.kinds.items()},
        **({kind: (v0_type(v0.spec),)} if v0 else {}),
    }
    specs = types.get(kind, ())
    if not specs:
        hint = f"use one of {', '.join(kinds_of(catalog))}"
        raise NotFound(f"no configuration file has the kind {kind}", hint=hint)
    generator = _EditorSchema(catalog, is_v0=v0 is not None)
    refs, definitions = generator.generate_definitions(
        [(spec.__name__, "validation", spec.__pydantic_core_schema__) for spec in specs]
    )
    schema, *v1 = [refs[spec.__name__, "validation"] for spec in specs]
    if v1:
        # A file of v0 has one of the keys that v1 does not have.
        v0_keys = sorted(fields_of(specs[0]).keys() - fields_of(specs[1]).keys())
        is_v0 = {"anyOf": [{"required": [key]} for key in v0_keys]}
        schema = {"if": is_v0, "then": schema, "else": v1[0]}
    return {
        "$schema": DIALECT,
        "title": f"PipeCD {kind}",
        "type": "object",
        "required": ["apiVersion", "kind"],
        "additionalProperties": False,
        "properties": {
            "apiVersion": {"const": API_VERSION},
            "kind": {"const": kind},
            "spec": {"anyOf": [schema, _NULL]},
        },
        "$defs": definitions,
    }


class _EditorSchema(GenerateJsonSchema):
    """Refuses unknown keys, allows null, and selects the schema of options by their name."""

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
        self._add_conditions(spec, described, properties)
        return described

    def _add_conditions(
        self, spec: type[Spec], described: JsonSchemaValue, properties: dict[str, Any]
    ) -> None:
        """Add the schemas of options that depend on a name or type beside them."""
        if issubclass(spec, ApplicationSpec):
            plugins = [p for p in self._catalog.plugins if p.application]
            sections = {
                "type": ["object", "null"],
                "properties": {p.name: self._ref(p.application) for p in plugins},
                "additionalProperties": {"type": ["object", "null"]},
            }
            properties["plugins"] = sections
        elif spec is StageSpec:
            options: Mapping[str, type[Spec]] = self._catalog.stages
            if self._is_v0:
                v0_stages = self._catalog.v0_stages.items()
                options = {**options, **{name: stage.options for name, stage in v0_stages}}
            names = {"enum" if self._is_v0 else "examples": sorted(options)}
            properties["name"] = {"type": "string", **names}
            described["allOf"] = _conditions(
                "name", {name: {"with": self._ref(o)} for name, o in options.items()}
            )
        elif spec is PluginSpec:
            parts: dict[str, dict[str, JsonSchemaValue]] = {}
            for plugin in self._catalog.plugins:
                parts[plugin.name] = {"config": self._ref(plugin.piped)} if plugin.piped else {}
                if plugin.deploy_target:
                    config = {"properties": {"config": self._ref(plugin.deploy_target)}}
                    parts[plugin.name]["deployTargets"] = {"items": config}
            described["allOf"] = _conditions("name", parts)
        elif spec is PlatformProviderSpec:
            kinds = [plugin.v0 for plugin in self._catalog.plugins if plugin.v0]
            configs = {k.provider_type: {"config": self._ref(k.provider_config)} for k in kinds}
            properties["type"] = {"enum": sorted(configs)}
            described["allOf"] = _conditions("type", configs)

    def _ref(self, spec: type[Spec] | None) -> JsonSchemaValue:
        schema: CoreSchema | None = spec.__pydantic_core_schema__ if spec else None
        return {"anyOf": [self.generate_inner(schema), _NULL]} if schema else {}


def _conditions(
    key: str, values: Mapping[str, Mapping[str, JsonSchemaValue]]
) -> list[JsonSchemaValue]:
    return [
        {
            "if": {"properties": {key: {"const": name}}, "required": [key]},
            "then": {"properties": dict(properties)},
        }
        for name, properties in sorted(values.items())
        if properties
    ]


def _property(described: JsonSchemaValue, *, is_nullable: bool) -> JsonSchemaValue:
    """Return a property that allows null, without a default that is empty or an object."""
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
    """Return the required keys of a part."""
    try:
        spec.model_validate({}, by_alias=True, by_name=False)
    except ValidationError as e:
        errors = [error for error in e.errors(include_url=False) if len(error["loc"]) == 1]
        # Pydantic names a missing field by its attribute or by its key.
        missing = {error["loc"][0] for error in errors if error["type"] in _FIELD_ERRORS}
        return [key for key, f in fields_of(spec).items() if {key, f.name} & missing]
    return []
