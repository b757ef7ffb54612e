# SPDX-License-Identifier: Apache-2.0
"""`pipectl migrate`: moves applications from kinds to plugins, stored ones and files."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import click
import yaml

from pipecd.commandline import flags
from pipecd.config.application import is_application_file
from pipecd.config.application_v0 import STAGE_FIELDS
from pipecd.model.application import ApplicationKind
from pipecd.model.errors import PipecdError, UserMistake
from pipecd.observe import log
from pipecd.pipectl import completion
from pipecd.pipectl.client import Api, attempt, client_flags, logger, with_api
from pipecd.pipectl.plugin_format import PluginFormat, rewrite_text
from pipecd.program.atomic_write import write_atomic
from pipecd.proto.model.deployment_pb2 import DeployTargets
from pipecd.proto.service import api_pb2 as pb

_PLUGINS: Mapping[ApplicationKind, str] = {
    ApplicationKind.KUBERNETES: "kubernetes",
    ApplicationKind.TERRAFORM: "terraform",
    ApplicationKind.ECS: "ecs",
    ApplicationKind.LAMBDA: "lambda",
    ApplicationKind.CLOUDRUN: "cloudrun",
}
_COMMON_KEYS = (
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
_KUBERNETES_APP = "KubernetesApp"
_PLUGIN_KEYS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    _KUBERNETES_APP: (
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


@click.group()
def migrate() -> None:
    """Move from kinds and platform providers to plugins and deploy targets."""


@migrate.command("database", short_help="Set the deploy targets of applications.")
@with_api
@flags.strings(
    "applications",
    "The applications, by id.",
    required=True,
    complete=completion.applications,
)
async def database(api: Api, applications: tuple[str, ...]) -> None:
    """Set the deploy targets of applications from their platform providers."""
    for id_ in applications:
        await _migrate_application(api, id_)


async def _migrate_application(api: Api, id_: str) -> None:
    response = await attempt(
        "get application", api.GetApplication(pb.GetApplicationRequest(application_id=id_))
    )
    application = response.application
    if application.deploy_targets_by_plugin:
        logger.info("application has deploy targets already", application=id_)
        return
    if not application.platform_provider:
        logger.info("application has no platform provider", application=id_)
        return
    plugin = _PLUGINS[ApplicationKind(application.kind)]
    targets = {plugin: DeployTargets(deploy_targets=[application.platform_provider])}
    request = pb.UpdateApplicationDeployTargetsRequest(
        application_id=id_, deploy_targets_by_plugin=targets
    )
    await attempt("update application", api.UpdateApplicationDeployTargets(request))
    logger.info("application has deploy targets now", application=id_, plugin=plugin)


@migrate.command("application-config", short_help="Rewrite application files for plugins.")
@flags.every_command
@client_flags
@flags.strings("config-files", "The files to rewrite.", complete=flags.files)
@flags.strings(
    "dirs",
    "Directories whose application files are rewritten, also further down.",
    complete=flags.directories,
)
def application_config(
    config_files: tuple[str, ...],
    dirs: tuple[str, ...],
    log_level: str,
    log_encoding: str,
    **_: object,
) -> None:
    """Rewrite application files for plugins; the old ones stay beside them as FILE.old."""
    log.configure(log_level, log_encoding, program="pipectl")
    if bool(config_files) == bool(dirs):
        raise UserMistake("exactly one of --config-files and --dirs must be set")
    for name in config_files:
        rewrite(Path(name))
    for file in (file for name in dirs for file in _application_files(Path(name))):
        try:
            rewrite(file)
        except PipecdError as e:
            logger.error("file not migrated", file=str(file), error=str(e))


def rewrite(file: Path) -> None:
    """Rewrites an application file; on any error it stays unchanged."""
    try:
        content = file.read_bytes()
        rewritten = rewrite_text(content.decode(), to_plugin_format(yaml.safe_load(content)))
        old = file.with_name(f"{file.name}.old")
        old.unlink(missing_ok=True)
        old.hardlink_to(file)
        write_atomic(file, rewritten.text.encode(), mode=0o644)
    except OSError as e:
        raise UserMistake(f"cannot rewrite {file}: {e.strerror}") from e
    except (yaml.YAMLError, UnicodeDecodeError) as e:
        raise UserMistake(f"{file} is not YAML: {e}", hint="see pipectl lint") from e
    except UserMistake as e:
        raise UserMistake(f"{file}: {e.message}", hint=e.hint) from e
    if rewritten.lost:
        logger.warning(
            "comments of these lines are not in the new file, copy them from the old one",
            file=str(file),
            old=str(old),
            lines=rewritten.lost,
        )
    logger.info("file migrated", file=str(file))


def _application_files(directory: Path) -> Iterator[Path]:
    if not directory.is_dir():
        raise UserMistake(f"there is no directory {directory}")
    return (f for f in sorted(directory.rglob("*")) if f.is_file() and is_application_file(f.name))


def to_plugin_format(document: object) -> PluginFormat:
    """Returns the application file in the format for plugins, without keys that they lack."""
    old = _mapping(document, "the file")
    kind = str(old.get("kind", ""))
    if kind not in _PLUGIN_KEYS:
        raise UserMistake(
            f"unsupported application kind: {kind}", hint=f"use one of {', '.join(_PLUGIN_KEYS)}"
        )
    spec = _mapping(old.get("spec"), "spec")
    plugin, keys = _PLUGIN_KEYS[kind]
    plugins: dict[str, Any] = {plugin: _pick(spec, keys)}
    stages = _stages(spec)
    if kind == _KUBERNETES_APP and any(stage.get("name") == "ANALYSIS" for stage in stages):
        namespace = _mapping(spec.get("input") or {}, "spec.input").get("namespace") or "default"
        plugins["analysis"] = {"appCustomArgs": {"k8sNamespace": namespace}}
    new = {**_pick(spec, _COMMON_KEYS), "plugins": plugins}
    if stages:
        new["pipeline"] = {"stages": stages}
    migrated = {"apiVersion": "pipecd.dev/v1beta1", "kind": "Application", "spec": new}
    return PluginFormat(migrated, plugin, keys)


def _stages(spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the stages; options that every stage has now are repeated outside of `with`."""
    pipeline = _mapping(spec.get("pipeline") or {}, "spec.pipeline")
    listed: object = pipeline.get("stages") or []
    if not isinstance(listed, list):
        raise UserMistake("spec.pipeline.stages is not a list")
    stages: list[dict[str, Any]] = []
    for index, stage in enumerate(cast("list[object]", listed)):
        where = f"spec.pipeline.stages[{index}]"
        own = dict(_mapping(stage, where))
        options = _mapping(own.get("with") or {}, f"{where}.with")
        stages.append({**own, **_pick(options, STAGE_FIELDS)})
    return stages


def _pick(source: Mapping[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: source[key] for key in keys if key in source}


def _mapping(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise UserMistake(f"{where} is missing or not a map", hint="is this an application file?")
    return cast("Mapping[str, Any]", value)
