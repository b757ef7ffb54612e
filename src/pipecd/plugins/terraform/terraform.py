# SPDX-License-Identifier: Apache-2.0
"""Runs Terraform or OpenTofu in a working copy of an application."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast

from pipecd.plugins.terraform.config import TerraformApplication, TerraformTarget
from pipecd.plugins.terraform.data_directory import (
    LOCK_FILE,
    DataDirectories,
    DataDirectory,
    init_digest,
)
from pipecd.plugins.terraform.errors import explain, without_color
from pipecd.plugins.terraform.flags import (
    apply_arguments,
    init_arguments,
    plan_arguments,
    shown_variables,
    variable_arguments,
)
from pipecd.plugins.terraform.tools import Tool, Toolbox
from pipecd.sdk import (
    LiveContext,
    PlanContext,
    PreviewContext,
    Source,
    StageContext,
    UserMistake,
)
from pipecd.sdk.host import program_variables
from pipecd.sdk.program import Finished, capture, run

PluginContext: TypeAlias = PlanContext | LiveContext | PreviewContext | StageContext
Log: TypeAlias = Callable[[str], None]

# On an interrupt Terraform lets running operations end and stores what they did; providers must
# not get a signal that ends them, and SIGTERM would.
_STOP, _GRACE = signal.SIGINT, 18.0
_SHOW_TIMEOUT = 120.0
_NO_CHANGES, _CHANGES = 0, 2
_RULE = "─"


@dataclass(frozen=True)
class Planned:
    """The result of `plan`: whether it has changes, and what it printed, without colours."""

    has_changes: bool
    text: str


@dataclass(frozen=True)
class Terraform:
    """Terraform in a working copy whose data directory is initialized."""

    tool: Tool
    application: TerraformApplication
    target: TerraformTarget
    directory: Path
    environment: Mapping[str, str]
    log: Log
    is_colored: bool
    data: DataDirectory

    async def plan(self, out: Path) -> Planned:
        """Plans and saves the plan, which only the user of piped can read."""
        done = await self._run(plan_arguments(self.application, out), "plan")
        if done.code not in (_NO_CHANGES, _CHANGES):
            raise explain(self.tool.name, "plan", done.output, done.code)
        await asyncio.to_thread(out.chmod, 0o600)
        text = without_color(done.output).partition(f"\n{_RULE * 3}")[0]
        return Planned(done.code == _CHANGES, text)

    async def apply(self, saved: Path) -> None:
        """Applies a saved plan."""
        done = await self._run(apply_arguments(self.application, saved), "apply")
        if done.code != 0:
            raise explain(self.tool.name, "apply", done.output, done.code)

    async def show(self, saved: Path | None = None) -> dict[str, Any]:
        """Returns the JSON of a saved plan, or of the state."""
        arguments = ["show", "-json", "-no-color", *([str(saved)] if saved else [])]
        shown = await capture(
            [str(self.tool.path), *arguments],
            cwd=self.directory,
            env=self._environment_of("show"),
            at_most=_SHOW_TIMEOUT,
        )
        if shown.code != 0:
            raise explain(self.tool.name, "show", shown.stderr.decode(errors="replace"), shown.code)
        document: Any = await asyncio.to_thread(json.loads, shown.stdout)
        return cast("dict[str, Any]", document)

    async def initialize(self) -> bool:
        """Runs `init`; returns whether another one would choose the same versions."""
        has_lock = (self.directory / LOCK_FILE).exists()
        arguments = init_arguments(self.application)
        # A lock file that does not stay may lack the checksums for other platforms.
        extra = {} if has_lock else {"TF_PLUGIN_CACHE_MAY_BREAK_DEPENDENCY_LOCK_FILE": "1"}
        done = await self._run(arguments, "init", extra)
        if done.code != 0:
            raise explain(self.tool.name, "init", done.output, done.code)
        has_new_lock = not has_lock and (self.directory / LOCK_FILE).exists()
        if has_new_lock:
            self.data.keep_lock(self.directory)
        return not has_new_lock and not self.data.has_remote_modules()

    async def select_workspace(self) -> None:
        """Selects the workspace of the application, which must exist."""
        if not self.application.workspace:
            return
        done = await self._run(["workspace", "select", self.application.workspace], "workspace")
        if done.code != 0:
            raise explain(self.tool.name, "workspace select", done.output, done.code)

    async def _run(
        self, arguments: Sequence[str], command: str, extra: Mapping[str, str] | None = None
    ) -> Finished:
        variables = (*self.target.vars, *self.application.vars)
        takes_variables = command in ("init", "plan")
        shown = shown_variables(variables) if takes_variables else []
        name, *flags = arguments
        colored = [] if self.is_colored or command == "workspace" else ["-no-color"]
        flags = [*colored, *flags]
        self.log(" ".join((f"$ {self.tool.name} {name}", *shown, *map(_shown_flag, flags))))
        env = {**self._environment_of(command), **(extra or {})}
        if takes_variables and variables:
            key = f"TF_CLI_ARGS_{command}"
            given = (variable_arguments(variables), env.get(key, ""))
            env[key] = " ".join(text for text in given if text)
        return await run(
            [str(self.tool.path), name, *flags],
            cwd=self.directory,
            env=env,
            on_line=_until_rule(self.log),
            grace=_GRACE,
            stop=_STOP,
        )

    def _environment_of(self, command: str) -> dict[str, str]:
        texts = self.application.command_envs
        own: Sequence[str] = getattr(texts, command, ())
        if command == "plan":
            # Variables of an apply are those of its plan.
            own = (*(text for text in texts.apply if text.startswith("TF_VAR_")), *own)
        pairs = (text.partition("=") for text in (*texts.shared, *own))
        return {
            **self.environment,
            **{name: value for name, _, value in pairs},
            "TF_DATA_DIR": str(self.data.data),
        }


def _shown_flag(flag: str) -> str:
    """Returns a flag as a log shows it: no value of a variable, and no path of the host."""
    if flag.startswith("-out="):
        return "-out=…"
    if flag.startswith(("-var=", "--var=", "-backend-config=")):
        name, _, value = flag.partition("=")
        key, has_value, _ = value.partition("=")
        return f"{name}={key}=…" if has_value else flag
    return "…" if flag.startswith("/") else flag


def _until_rule(log: Log) -> Log:
    """Returns a log without what follows a rule: how to apply the saved plan by hand."""
    is_over = False

    def write(line: str) -> None:
        nonlocal is_over
        text = without_color(line)
        is_over = is_over or (len(text) > len(_RULE) and set(text) == {_RULE})
        if not is_over:
            log(line)

    return write


class TerraformRunner:
    """Opens working copies; the tools, caches and data directories are those of all of them."""

    def __init__(self, directory: Path) -> None:
        self._toolbox = Toolbox()
        self._directories = DataDirectories(directory / "applications")
        self._plugin_cache = directory / "providers"
        self._plugin_cache.mkdir(exist_ok=True, mode=0o700)
        # Terraform does not lock the shared cache of providers.
        self._cache_lock = asyncio.Lock()

    @asynccontextmanager
    async def open(
        self, context: PluginContext, source: Source, *, log: Log | None = None, newest: bool
    ) -> AsyncIterator[Terraform]:
        """Initializes the working copy of a source.

        Without a `log` the commands are silent and without colours. With `newest` the newest
        modules and providers that the configuration allows are used.
        """
        settings = source.application_settings(context.plugin.name, TerraformApplication)
        target = only_target(context)
        directory = source.application_directory
        tool = await self._toolbox.find(
            settings.tool or target.tool, settings.terraform_version, context
        )
        environment = {
            "TF_PLUGIN_CACHE_DIR": str(self._plugin_cache),
            **program_variables(context.host.git_variables),
            "TF_IN_AUTOMATION": "1",
            "CHECKPOINT_DISABLE": "1",
        }
        is_stage = isinstance(context, PlanContext | StageContext)
        application_id = context.deployment.application_id if is_stage else context.application_id
        digest = await asyncio.to_thread(
            init_digest,
            directory,
            _named_files(settings),
            [
                str(tool.path),
                tool.version,
                settings.model_dump(mode="json"),
                target.vars,
                sorted(item for item in os.environ.items() if item[0].startswith("TF_")),
            ],
        )

        def terraform(data: DataDirectory) -> Terraform:
            return Terraform(
                tool, settings, target, directory, environment, log or _silent, bool(log), data
            )

        async def initialize(data: DataDirectory) -> bool:
            async with self._cache_lock:
                return await terraform(data).initialize()

        if log:
            log(f"{tool.name} {tool.version}, commit {source.commit[:7]}")
        async with self._directories.open(
            application_id, digest, initialize, newest=newest
        ) as data:
            await asyncio.to_thread(data.restore_lock, directory)
            opened = terraform(data)
            if log and not data.has_backend():
                log("No backend is configured: the state is lost with this working copy.")
            await opened.select_workspace()
            yield opened


def only_target(context: PluginContext) -> TerraformTarget:
    """Returns the settings of the one deploy target of an application."""
    if len(context.targets) != 1:
        names = ", ".join(target.name for target in context.targets)
        raise UserMistake(
            f"a Terraform application has one deploy target, and this one has {names or 'none'}",
            hint="choose one of them for the application",
        )
    return context.targets[0].settings(TerraformTarget)


def _named_files(settings: TerraformApplication) -> list[str]:
    """Returns the files that flags of `init` name."""
    flags = (*settings.command_flags.shared, *settings.command_flags.init)
    return [*settings.var_files, *(flag.partition("=")[2] for flag in flags if "=" in flag)]


def _silent(_: str) -> None:
    return
