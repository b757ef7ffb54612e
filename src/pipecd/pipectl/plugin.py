# SPDX-License-Identifier: Apache-2.0
"""`pipectl plugin`: creates, checks and publishes a plugin, without a control plane."""

import asyncio
import json
import re
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Any

import click
import yaml

from pipecd.commandline import flags
from pipecd.config.piped import PluginSpec
from pipecd.model.errors import PipecdError, UserMistake
from pipecd.sdk.conformance import Trial, Verdict, try_plugin
from pipecd.sdk.options import decode_value
from pipecd.wire.oci import PLUGIN_LAYER, Platform, parse_reference
from pipecd.wire.registry import Registry, docker_login

ARTIFACT_TYPE = f"{PLUGIN_LAYER}+type"
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")

_PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "pipecd-plugin-$name"
version = "0.1.0"
description = "The stage $stage for PipeCD."
requires-python = ">=3.11"
# It also needs PipeCD, from the wheel of a release: a package of that name on a public index is
# another one.
dependencies = []

[project.optional-dependencies]
test = ["pytest"]

[project.scripts]
pipecd-plugin-$name = "$module.plugin:main"

# The first lets a piped run it, the second lets `pipectl lint` check files that use it.
[project.entry-points."pipecd.plugins"]
$name = "$module.plugin:${title}Plugin"

[project.entry-points."pipecd.plugin_config"]
$name = "$module.plugin:CONFIG"

[tool.hatch.build.targets.wheel]
packages = ["src/$module"]

[tool.pytest.ini_options]
testpaths = ["tests"]
pythonpath = ["src"]
"""

_PLUGIN = '''\
"""$stage greets; make it do what you need."""

from pipecd.sdk import DISPLAY_KEY, PluginConfig, Spec, Stage
from pipecd.sdk import StageContext, StagePlugin, StageResult, serve


class ${title}Options(Spec):
    """What `with` of the stage may say."""

    message: str = "Hello"


class ${title}Plugin(StagePlugin):
    """Offers the stage $stage."""

    stages = (Stage("$stage", ${title}Options),)

    async def execute(self, stage: StageContext) -> StageResult:
        options = stage.options(${title}Options)
        text = f"{options.message}, {stage.deployment.application_name}"
        stage.log.info(text)
        await stage.metadata.put({DISPLAY_KEY: text})
        return StageResult.succeeded()


CONFIG = PluginConfig(name="$name", stages={"$stage": ${title}Options})


def main() -> None:
    serve(${title}Plugin)
'''

_MAIN = '''\
"""`python -m $module` is the program of the plugin."""

from $module.plugin import main

main()
'''

_TEST = '''\
"""The stage, without a piped."""

import asyncio

from $module.plugin import ${title}Plugin
from pipecd.sdk import DISPLAY_KEY, StageStatus
from pipecd.sdk.testing import StageBench


def test_it_greets(tmp_path):
    bench = StageBench(${title}Plugin(), tmp_path)
    result = asyncio.run(bench.run("$stage", {"message": "Good morning"}))
    assert result.status is StageStatus.SUCCESS
    assert bench.host.lines == ["Good morning, tested"]
    assert bench.host.stage_metadata[DISPLAY_KEY] == "Good morning, tested"


def test_an_invalid_option_is_an_error(tmp_path):
    result = asyncio.run(StageBench(${title}Plugin(), tmp_path).run("$stage", {"message": [1]}))
    assert result.status is StageStatus.FAILURE
    assert result.message.startswith("stage $stage: message:")
'''

_CONFORMANCE = '''\
"""The program, as every piped runs it."""

import asyncio
import sys

from pipecd.sdk.conformance import Trial, Verdict, try_plugin


def test_it_is_a_plugin(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "src")
    trial = Trial(command=[sys.executable, "-m", "$module"], options={"$stage": {}})

    async def findings():
        return [finding async for finding in try_plugin(trial)]

    failed = [str(f) for f in asyncio.run(findings()) if f.verdict is Verdict.FAILED]
    assert failed == []
'''

_README = """\
# The stage $stage for PipeCD

Install it with the Python that has PipeCD, or first install the wheel of the release that your
piped runs:

    pip install pipecd-VERSION-py3-none-any.whl
    pip install -e '.[test]'
    pytest

PipeCD is not among the dependencies of `pyproject.toml`, because a package named `pipecd` on a
public index is another one.

Name the plugin in the file of a piped that runs with the same Python:

    plugins:
      - name: $name

and in a pipeline:

    - name: $stage
      with:
        message: Hello
"""


@click.group()
def plugin() -> None:
    """Create, check and publish plugins."""


@plugin.command("init", short_help="Write a working plugin with tests.")
@flags.every_command
@flags.text("dir", "Where to write it; a directory named like the plugin when it is not set.")
@click.argument("name")
def init(name: str, dir: str, **_: object) -> None:
    """Write a plugin NAME that works, with tests and everything to install it."""
    project = Project(name)
    directory = Path(dir or name)
    project.write(directory)
    click.echo(
        f"{directory} is a plugin with the stage {project.stage}; next:\n"
        f"  cd {directory} && pip install -e '.[test]' && pytest\n"
        "with the Python that has PipeCD; README.md says how to install it elsewhere"
    )


@plugin.command("check")
@flags.every_command
@flags.text("entry-file", "The plugin's entry of the piped file, as YAML: config, deployTargets.")
@click.option("--run", multiple=True, help="A stage to run, as NAME or NAME=JSON of its options.")
@click.option("--tool", multiple=True, help="A tool that it installs, as NAME=PATH.")
@click.argument(
    "command", nargs=-1, required=True, type=click.UNPROCESSED, shell_complete=flags.files
)
def check(
    command: tuple[str, ...],
    entry_file: str,
    run: tuple[str, ...],
    tool: tuple[str, ...],
    **_: object,
) -> None:
    """Check that COMMAND is a plugin that every piped can run."""
    options: dict[str, object] = {}
    for stage in run:
        name, _equals, text = stage.partition("=")
        try:
            options[name] = json.loads(text or "{}")
        except ValueError as e:
            raise UserMistake(f"--run {stage}: the options are not JSON: {e}") from e
    entry = _entry(Path(entry_file)) if entry_file else None
    tools = dict(map(_tool, tool))

    async def count_failed() -> int:
        failed = 0
        trial = Trial(command=command, entry=entry, options=options, tools=tools)
        async for finding in try_plugin(trial):
            click.echo(str(finding))
            failed += finding.verdict is Verdict.FAILED
        return failed

    if failed := asyncio.run(count_failed()):
        hint = "" if entry else "if it needs config or deployTargets, name them with --entry-file"
        raise PipecdError(f"{failed} of the checks failed", hint=hint)


def _tool(given: str) -> tuple[str, Path]:
    name, equals, path = given.partition("=")
    if not name or not equals:
        raise UserMistake(f"invalid tool: {given}", hint="write NAME=PATH")
    if not Path(path).is_file():
        raise UserMistake(f"there is no file {path}", hint=f"check --tool {given}")
    return name, Path(path).absolute()


def _entry(path: Path) -> PluginSpec:
    try:
        content: Any = yaml.safe_load(path.read_bytes())
    except OSError as e:
        raise UserMistake(f"cannot read {path}: {e.strerror}") from e
    except yaml.YAMLError as e:
        raise UserMistake(f"{path} is not YAML: {e}") from e
    if not isinstance(content, dict):
        raise UserMistake(f"{path} must be a mapping: config, deployTargets")
    return decode_value(PluginSpec, {"name": "checked", **content}, what=str(path))


@plugin.command("push")
@flags.every_command
@flags.strings("files", "Programs by platform, as OS/ARCH=path.", required=True)
@flags.text("tag", "The tag.", required=True)
@flags.text("registry", "The registry, as host or host:port.", required=True)
@flags.text("repository", "The repository in it.", required=True)
@flags.switch("insecure", "Connect to the registry without TLS.")
def push(
    files: tuple[str, ...], tag: str, registry: str, repository: str, insecure: bool, **_: object
) -> None:
    """Push a plugin to an OCI registry, from which pipeds download it."""
    programs = [_program(one) for one in files]
    reference = parse_reference(f"oci://{registry}/{repository}:{tag}")

    async def push_programs() -> str:
        login = docker_login(reference.host)
        async with Registry.open(reference, login=login, insecure=insecure) as opened:
            return await opened.push(programs, layer_type=PLUGIN_LAYER, artifact_type=ARTIFACT_TYPE)

    digest = asyncio.run(push_programs())
    click.echo(f"oci://{registry}/{repository}:{tag}@{digest}")


def _program(given: str) -> tuple[Platform, Path]:
    platform, equals, path = given.partition("=")
    if not equals or not path:
        raise UserMistake(f"invalid file format: {given}", hint="write OS/ARCH=path")
    system, slash, architecture = platform.partition("/")
    if not system or not slash or not architecture or "/" in architecture:
        raise UserMistake(f"invalid platform format: {platform}", hint="write OS/ARCH=path")
    if not Path(path).is_file():
        raise UserMistake(f"there is no file {path}")
    return Platform(system, architecture), Path(path)


class Project:
    """The files of a new plugin with one stage, named after it."""

    def __init__(self, name: str) -> None:
        if not _NAME.fullmatch(name):
            raise UserMistake(
                f"{name!r} cannot be the name of a plugin",
                hint="use small letters, digits and single dashes, such as tcp-check",
            )
        self._name = name
        self._module = f"pipecd_{name.replace('-', '_')}"

    @property
    def stage(self) -> str:
        """The name of its stage."""
        return self._name.replace("-", "_").upper()

    def files(self) -> Mapping[str, str]:
        """The content of every file."""
        values = {
            "name": self._name,
            "module": self._module,
            "stage": self.stage,
            "title": "".join(word.capitalize() for word in self._name.split("-")),
        }
        package = f"src/{self._module}"
        templates = {
            "pyproject.toml": _PYPROJECT,
            "README.md": _README,
            ".gitignore": "__pycache__/\n.pytest_cache/\ndist/\n",
            f"{package}/__init__.py": '"""The stage $stage for PipeCD."""\n',
            f"{package}/__main__.py": _MAIN,
            f"{package}/plugin.py": _PLUGIN,
            "tests/test_plugin.py": _TEST,
            "tests/test_conformance.py": _CONFORMANCE,
        }
        return {path: Template(text).substitute(values) for path, text in templates.items()}

    def write(self, directory: Path) -> None:
        """Writes everything into a directory that is new or empty."""
        try:
            directory.mkdir(parents=True, exist_ok=True)
            if any(directory.iterdir()):
                raise UserMistake(
                    f"{directory} is not empty", hint="name another directory with --dir"
                )
            for path, text in self.files().items():
                (directory / path).parent.mkdir(parents=True, exist_ok=True)
                (directory / path).write_text(text)
        except OSError as e:
            raise UserMistake(f"cannot write to {directory}: {e.strerror}") from e
