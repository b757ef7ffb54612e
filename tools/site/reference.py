# SPDX-License-Identifier: Apache-2.0
"""The reference pages of the documentation site, generated from types, commands and metrics."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import click
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric

from pipecd import cli
from pipecd.config.catalog import Catalog, load_catalog
from pipecd.config.schema import kinds_of, schema_of
from pipecd.controlplane.api.rest.openapi import openapi_document
from pipecd.controlplane.jobs.runner import JobMetrics
from pipecd.launcher.metrics import LauncherMetrics
from pipecd.observe.deployments import DeploymentStatuses
from pipecd.observe.metrics import PluginMetrics, ServerMetrics, StoreMetrics
from pipecd.pipectl.cli import tree as pipectl_tree
from pipecd.piped.notify.outbox import NotificationMetrics
from pipecd.piped.planpreview.previewer import PreviewMetrics
from pipecd.plugins.kubernetes.metrics import Metrics as KubernetesMetrics

Json = dict[str, Any]
_DEFS = "#/$defs/"
_SCHEMAS = "#/components/schemas/"


def reference_pages() -> dict[str, str]:
    """Returns every generated page by its path on the site."""
    catalog = load_catalog()
    kinds = kinds_of(catalog)
    pages = {f"reference/{kind}.md": _kind_page(kind, catalog) for kind in kinds}
    pages["reference/index.md"] = _index(kinds)
    pages["reference/stages.md"] = _stages_page(catalog)
    pages["reference/commands.md"] = commands_page()
    pages["reference/metrics.md"] = metrics_page()
    pages["reference/rest.md"] = rest_page(openapi_document())
    return pages


def _index(kinds: tuple[str, ...]) -> str:
    rows = "\n".join(f"| [`{kind}`]({kind}.md) | {_KIND_TEXTS[kind]} |" for kind in kinds)
    return f"""# Reference

These pages are generated from the code of this version: what they list exists, and nothing else does. The guides explain
the same things in sentences and with samples.

| Page | Lists |
|---|---|
| [Options of all stages](stages.md) | every stage a pipeline may name, and its options |
| [Flags of all commands](commands.md) | every command of `pipecd`, `piped`, `pipectl` and `launcher` with its flags |
| [REST API](rest.md) | every endpoint under `/api/v1/`, its parameters and its response |
| [Metrics](metrics.md) | every metric with its type and labels |
| [Configuration of applications](../guide/configuration.md) | every key with its meaning, by hand |

## Configuration files by kind

| Kind | Configures |
|---|---|
{rows}

`pipectl schema KIND` prints the same as a JSON Schema, which editors use to complete and check files.
"""


_KIND_TEXTS = {
    "Application": "an application of the second generation, with plugins",
    "CloudRunApp": "a Cloud Run service, first generation",
    "ECSApp": "an Amazon ECS service, first generation",
    "KubernetesApp": "an application on Kubernetes, first generation",
    "LambdaApp": "an AWS Lambda function, first generation",
    "TerraformApp": "a Terraform directory, first generation",
    "Piped": "a piped, of either generation",
    "ControlPlane": "a control plane",
    "EventWatcher": "values that events write into Git",
    "AnalysisTemplate": "checks that several ANALYSIS stages share",
    "LambdaFunction": "the manifest of a Lambda function",
}


# Configuration


def _kind_page(kind: str, catalog: Catalog) -> str:
    schema = schema_of(kind, catalog)
    definitions = cast("Json", schema["$defs"])
    roots = [_name(ref, _DEFS) for ref in _references(schema["properties"]["spec"])]
    parts = [
        f"# {kind}",
        f"The file begins with `apiVersion: pipecd.dev/v1beta1` and `kind: {kind}`. "
        f"This is {_KIND_TEXTS[kind]}. The keys below are those of `spec`.",
    ]
    for name in _reachable(roots, definitions):
        # The names of our types mean nothing to a reader; a Piped has two forms of `spec`.
        title = "spec" if roots == [name] else name
        parts += _type_section(title, definitions[name])
    return "\n\n".join(parts) + "\n"


def _stages_page(catalog: Catalog) -> str:
    definitions = cast("Json", schema_of("Application", catalog)["$defs"])
    parts = [
        "# Options of all stages",
        "The keys below go under `with` of a stage. [Pipelines and stages](../guide/stages.md) explains each one.",
    ]
    types: list[str] = []
    for stage, spec in catalog.stages.items():
        own = definitions.get(spec.__name__)
        parts.append(f"## `{stage}`")
        if own is None or not own.get("properties"):
            parts.append("No options.")
            continue
        parts += [_first_paragraph(own), _table(own)] if own.get("description") else [_table(own)]
        types += _own_references(own)
    parts.append("## Types of options")
    for name in _reachable(types, definitions):
        parts += [f"### {name}", _table(definitions[name])]
    return "\n\n".join(part for part in parts if part) + "\n"


def _type_section(title: str, definition: Json) -> list[str]:
    parts = [f"## {title}"]
    if definition.get("description"):
        parts.append(_first_paragraph(definition))
    parts.append(_table(definition) if definition.get("properties") else "No keys.")
    return parts


def _first_paragraph(definition: Json) -> str:
    return str(definition["description"]).partition("\n\n")[0].replace("\n", " ")


def _table(definition: Json) -> str:
    required = set(definition.get("required", ()))
    rows = ["| Key | Type | Default |", "|---|---|---|"]
    for key, field in cast("Json", definition.get("properties", {})).items():
        default = "required" if key in required else _default(field)
        rows.append(f"| `{key}` | {_type(field)} | {default} |")
    return "\n".join(rows)


def _default(field: Json) -> str:
    value = field.get("default")
    return f"`{_cell(json.dumps(value))}`" if value not in (None, "", [], {}) else ""


def _type(field: Json) -> str:
    """Returns a schema as a phrase: `string`, `list of …`, `one of …`, or a link to its section."""
    if ref := field.get("$ref"):
        name = _name(ref, _DEFS)
        return f"[{name}](#{name.lower()})"
    if "enum" in field:
        return "one of " + ", ".join(f"`{_cell(str(value))}`" for value in field["enum"])
    if "const" in field:
        return f"`{_cell(str(field['const']))}`"
    if choices := field.get("anyOf") or field.get("oneOf"):
        texts = dict.fromkeys(_type(one) for one in choices if one.get("type") != "null")
        return " or ".join(texts)
    of = field.get("type")
    every = cast("list[str]", of if isinstance(of, list) else [of])
    types = [one for one in every if one != "null"]
    return " or ".join(_simple_type(one, field) for one in types) or "any value"


def _simple_type(name: Any, field: Json) -> str:
    match name:
        case "array":
            return f"list of {_type(field.get('items', {}))}"
        case "object":
            values = field.get("additionalProperties")
            return f"map to {_type(cast('Json', values))}" if isinstance(values, dict) else "map"
        case "string" if str(field.get("pattern", "")).endswith("(ns|us|µs|μs|ms|s|m|h))+)$"):
            return "duration"
        case None:
            return "any value"
        case _:
            return str(name)


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        for key, value in cast("Json", schema).items():
            if key == "$ref":
                yield value
            else:
                yield from _references(value)
    elif isinstance(schema, list):
        for value in cast("list[Any]", schema):
            yield from _references(value)


def _own_references(definition: Json) -> list[str]:
    return [_name(ref, _DEFS) for ref in _references(definition)]


def _reachable(roots: list[str], definitions: Json) -> list[str]:
    """Returns the definitions in the order in which a reader meets them."""
    order: dict[str, None] = {}
    waiting = list(roots)
    while waiting:
        name = waiting.pop(0)
        if name not in order:
            order[name] = None
            waiting += _own_references(definitions[name])
    return list(order)


def _name(ref: str, prefix: str) -> str:
    return ref.removeprefix(prefix)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


# Commands


def commands_page() -> str:
    """Returns the page of all commands; their defaults and meanings are those of `--help`."""
    parts = [
        "# Flags of all commands",
        "Every command with its flags, as `--help` prints them. [The guide](../guide/commands.md) says more about each.",
    ]
    for program, tree in _programs():
        parts.append(f"## {program}")
        for path, command in _commands(tree, program):
            if path.split()[-1] in ("help", "version", "completion"):
                continue
            parts += [f"### `{path}`", _one_line(command), _flags(command)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _programs() -> Iterator[tuple[str, click.Command]]:
    yield "pipecd", cli.tree()
    yield "piped", cli.piped_tree()
    yield "launcher", cli.launcher_tree()
    yield "pipectl", pipectl_tree()


def _commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield path, command
        return
    context = click.Context(command)
    for name in sorted(command.list_commands(context)):
        child = command.get_command(context, name)
        if child is not None and not child.hidden:
            yield from _commands(child, f"{path} {name}")


def _one_line(command: click.Command) -> str:
    text = (command.help or "").partition("\n\n")[0].replace("\n", " ")
    return text.replace("<", "&lt;").replace("*", "\\*")


def _flags(command: click.Command) -> str:
    rows: list[str] = []
    for option in command.params:
        if isinstance(option, click.Option) and not option.hidden:
            names = ", ".join(f"`{name}`" for name in option.opts)
            meaning = (option.help or "").replace("<", "&lt;").replace("*", "\\*")
            rows.append(f"| {names} | {_cell(meaning)} |")
    return "\n".join(["| Flag | Meaning |", "|---|---|", *rows]) if rows else ""


# Metrics


@dataclass(frozen=True)
class Documented:
    """A metric as its page lists it."""

    name: str
    type: str
    labels: tuple[str, ...]
    text: str


class _PluginStart:
    """Stands for the start of a plugin, of which only the metrics are used."""

    def __init__(self, metrics: PluginMetrics) -> None:
        self.tally = metrics.counter


def control_plane_metrics() -> list[Documented]:
    """The metrics that `pipecd server` and `pipecd ops` define themselves."""
    server = ServerMetrics.new()
    stores, jobs = CollectorRegistry(), CollectorRegistry()
    StoreMetrics(stores, "server")
    JobMetrics(jobs, "server")
    own = Documented(
        "insight_application_total", "gauge", ("project", "app_kind"), "Applications by project and kind."
    )  # fmt: skip
    return [*_documented(server.registry), *_documented(stores), *_documented(jobs), own]


def piped_metrics() -> list[Documented]:
    """The metrics that a piped and its built-in plugins define themselves."""
    registry, plugins = CollectorRegistry(), PluginMetrics()
    NotificationMetrics(registry)
    PreviewMetrics(registry)
    registry.register(DeploymentStatuses())
    make = cast("Callable[[_PluginStart], KubernetesMetrics]", KubernetesMetrics)
    make(_PluginStart(plugins))
    failures = Documented(
        "piped_plugin_failures",
        "gauge",
        ("plugin", "target"),
        "Plugins that do not run, and deploy targets that cannot be used.",
    )
    return [*_documented(registry), failures, *_documented(cast("Any", plugins)._registry)]


def _documented(registry: Any) -> list[Documented]:
    """Returns the metrics of a registry, also of those inside of collectors with constant labels."""
    documented: list[Documented] = []
    for collector in registry._collector_to_names:
        if hasattr(collector, "_inner"):
            documented += _documented(collector._inner)
        elif type(collector).__module__ in _OF_PYTHON:
            continue
        else:
            labels = getattr(collector, "_labelnames", None)
            for family in cast("list[Metric]", list(collector.collect())):
                names = labels if labels is not None else getattr(family, "_labelnames", ())
                name = f"{family.name}_total" if family.type == "counter" else family.name
                documented.append(Documented(name, family.type, tuple(names), family.documentation))
    return documented


_OF_PYTHON = {
    f"prometheus_client.{module}"
    for module in ("process_collector", "platform_collector", "gc_collector")
}


def metrics_page() -> str:
    """Returns the page of all metrics."""
    parts = [
        "# Metrics",
        "[Operations](../guide/operations.md#metrics-and-traces) says where each program serves its metrics and how to use "
        "them; ready-made dashboards and alert rules are described in [monitoring](../guide/monitoring.md). Beside these, every "
        "program has the usual `process_*` and `python_*` metrics.",
    ]
    for title, metrics in (
        ("Control plane", control_plane_metrics()),
        ("Piped", piped_metrics()),
        ("Launcher", _documented(LauncherMetrics().registry)),
    ):
        rows = [
            f"| `{one.name}` | {one.type} | {', '.join(f'`{label}`' for label in one.labels)} | {one.text} |"
            for one in sorted(metrics, key=lambda one: one.name)
        ]
        parts += [
            f"## {title}",
            "\n".join(["| Metric | Type | Labels | Meaning |", "|---|---|---|---|", *rows]),
        ]
    return "\n\n".join(parts) + "\n"


# REST


def rest_page(document: Json) -> str:
    """Returns the page of the REST API from its OpenAPI document."""
    parts = [
        "# REST API",
        "Paths are below `/api/v1`; send an API key as `Authorization: Bearer KEY`. [The guide](../guide/api.md) has samples "
        "and the errors. Your own control plane has the same list at `/docs/api`, where you can try each endpoint, and as an "
        "OpenAPI document at `/api/v1/openapi.json`.",
    ]
    schemas = cast("Json", document["components"]["schemas"])
    for path, methods in cast("Json", document["paths"]).items():
        for method, operation in cast("Json", methods).items():
            parts += [f"## `{method.upper()} {path}`", f"{operation['summary']}"]
            rows = [
                f"| `{one['name']}` | {one['in']} | {_rest_type(one['schema'])} |"
                for one in operation["parameters"]
            ]
            body = operation.get("requestBody")
            if body:
                fields = body["content"]["application/json"]["schema"]["properties"]
                rows += [f"| `{name}` | body | {_rest_type(of)} |" for name, of in fields.items()]
            if rows:
                parts.append("\n".join(["| Parameter | In | Type |", "|---|---|---|", *rows]))
            answer = operation["responses"]["200"]["content"]["application/json"]["schema"]
            fields = schemas[_name(answer["$ref"], _SCHEMAS)].get("properties", {})
            listed = ", ".join(f"`{name}` ({_rest_type(of)})" for name, of in fields.items())
            parts.append(f"Returns {listed or 'an empty object'}.")
    parts.append("# Objects")
    for name, schema in sorted(schemas.items()):
        if fields := schema.get("properties"):
            rows = [f"| `{key}` | {_rest_type(of)} |" for key, of in fields.items()]
            parts += [f"## {name}", "\n".join(["| Field | Type |", "|---|---|", *rows])]
    return "\n\n".join(parts) + "\n"


def _rest_type(schema: Json) -> str:
    if ref := schema.get("$ref"):
        name = _name(ref, _SCHEMAS)
        return f"[{name}](#{name.lower().replace('.', '')})"
    if schema.get("type") == "array":
        return f"list of {_rest_type(schema['items'])}"
    if schema.get("type") == "object" and "additionalProperties" in schema:
        return f"map to {_rest_type(schema['additionalProperties'])}"
    if "enum" in schema:
        return "one of " + ", ".join(f"`{value}`" for value in schema["enum"])
    return str(schema.get("type", "any value"))
