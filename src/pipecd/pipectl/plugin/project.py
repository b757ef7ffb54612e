# SPDX-License-Identifier: Apache-2.0
"""The files of a new plugin."""

import re
from collections.abc import Mapping
from pathlib import Path
from string import Template

from pipecd.model.errors import UserMistake

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
dependencies = ["pipecd"]

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


def test_a_mistake_in_the_options_is_told(tmp_path):
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

    pip install -e '.[test]'
    pytest

Name it in the file of a piped that runs with the same Python:

    plugins:
      - name: $name

and in a pipeline:

    - name: $stage
      with:
        message: Hello
"""


class Project:
    """A plugin of one stage, named after it."""

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

    def write(self, place: Path) -> None:
        """Writes everything into a directory that is new or empty."""
        try:
            place.mkdir(parents=True, exist_ok=True)
            if any(place.iterdir()):
                raise UserMistake(f"{place} is not empty", hint="name another directory with --dir")
            for path, text in self.files().items():
                (place / path).parent.mkdir(parents=True, exist_ok=True)
                (place / path).write_text(text)
        except OSError as e:
            raise UserMistake(f"cannot write to {place}: {e.strerror}") from e
