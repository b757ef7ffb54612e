# SPDX-License-Identifier: Apache-2.0
"""Runs Terraform or OpenTofu in a working copy of an application."""

import asyncio
import json
import os
import re
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast

from pipecd.plugins.terraform.apply_process import RUN_VARIABLE
from pipecd.plugins.terraform.applying import ApplyRecords
from pipecd.plugins.terraform.config import TerraformApplication, TerraformTarget
from pipecd.plugins.terraform.configuration import given_secrets
from pipecd.plugins.terraform.data_directory import (
    LOCK_FILE,
    DataDirectories,
    DataDirectory,
    init_digest,
)
from pipecd.plugins.terraform.errors import (
    explain,
    lock_in_the_way,
    saves_no_plans,
    without_color,
)
from pipecd.plugins.terraform.flags import (
    apply_arguments,
    init_arguments,
    plan_arguments,
    shown_variables,
    variable_arguments,
)
from pipecd.plugins.terraform.plan import Plan, read_plan, read_plan_text
from pipecd.plugins.terraform.sensitive import Secrets, plan_secrets
from pipecd.plugins.terraform.state_lock import StateLock, UnfinishedApply
from pipecd.plugins.terraform.tools import Tool, Toolbox
from pipecd.sdk import (
    LiveContext,
    PipecdError,
    PlanContext,
    PreviewContext,
    Source,
    StageContext,
    Unavailable,
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
# How often an apply is repeated when those that may have locked the state have ended.
_LOCKED_ATTEMPTS = 3
_NO_CHANGES, _CHANGES = 0, 2
_RULE = "─"
_PROGRESS = re.compile(r": (Refreshing state|Reading|Read complete|Still reading|Preparing import)")
_WITHOUT_COLOR = ("workspace", "force-unlock")


@dataclass(frozen=True)
class Planned:
    """The result of `plan`: what it changes, and its text without colours and secrets.

    `file` is None where the backend runs plans itself and cannot save them.
    """

    has_changes: bool
    plan: Plan
    text: str
    file: Path | None


@dataclass(frozen=True, kw_only=True)
class Terraform:
    """Terraform in a working copy whose data directory is initialized."""

    application_id: str
    tool: Tool
    application: TerraformApplication
    target: TerraformTarget
    directory: Path
    environment: Mapping[str, str]
    log: Log
    is_colored: bool
    data: DataDirectory
    secrets: Secrets
    applies: ApplyRecords

    async def plan(self, out: Path) -> Planned:
        """Plans and saves the plan if the backend can, in a file that only piped can read."""
        output = _PlanLog(self.log)
        done = await self._run(
            plan_arguments(self.application, out), "plan", has_variables=True, log=output.write
        )
        is_saved = not (done.code and saves_no_plans(done.output))
        if not is_saved:
            output = _PlanLog(self.log)
            done = await self._run(
                plan_arguments(self.application, None), "plan", has_variables=True, log=output.write
            )
        text = without_color(done.output).partition(f"\n{_RULE * 3}")[0]
        if done.code not in (_NO_CHANGES, _CHANGES):
            output.finish()
            raise self._error("plan", done.output, done.code)
        plan = read_plan_text(text)
        if is_saved:
            await asyncio.to_thread(out.chmod, 0o600)
            plan = read_plan(await self.show_plan(out))
        # Only now is it known what must not be shown.
        output.finish()
        return Planned(
            done.code == _CHANGES, plan, self.secrets.hide(text), out if is_saved else None
        )

    async def apply(self, saved: Path | None) -> None:
        """Applies a saved plan; without one it plans itself."""
        killed = await self.applies.unfinished(self.application_id)
        done = await self._apply(saved, after=killed)
        lock, has_no_holder = _lock_of(killed, done), False
        for _ in range(_LOCKED_ATTEMPTS):
            if lock is None or (has_no_holder := await self.applies.has_no_holder(lock)):
                break
            # Another apply may have taken the lock, and then it also unlocks the state. A command
            # of another application that is just ending looks like one.
            if not await self.applies.holders_ended(lock, self.log):
                break
            done = await self._apply(saved, after=killed)
            lock = _lock_of(killed, done)
        if lock and has_no_holder:
            self.log("The state is locked by an apply that was killed; its lock is removed")
            unlocked = await self._run(["force-unlock", "-force", lock.id], "force-unlock")
            if unlocked.code != 0:
                raise self._error("force-unlock", unlocked.output, unlocked.code)
            done = await self._apply(saved, after=None)
        if done.code != 0:
            raise self._error("apply", done.output, done.code)

    async def _apply(self, saved: Path | None, *, after: UnfinishedApply | None) -> Finished:
        arguments = apply_arguments(self.application, saved)
        async with self.applies.applying(self.application_id, after=after) as run_id:
            done = await self._run(
                arguments,
                "apply",
                has_variables=saved is None,
                extra={RUN_VARIABLE: run_id},
                outlives_us=True,
            )
            if done.code < 0:
                raise self._error("apply", done.output, done.code)
        return done

    async def show_plan(self, saved: Path) -> dict[str, Any]:
        """Returns the JSON of a saved plan, whose secrets are hidden from now on."""
        document = await self._show(str(saved))
        self.secrets.add(plan_secrets(document))
        return document

    async def show_state(self) -> dict[str, Any]:
        """Returns the JSON of the state."""
        return await self._show()

    async def _show(self, *what: str) -> dict[str, Any]:
        shown = await capture(
            [str(self.tool.path), "show", "-json", "-no-color", *what],
            cwd=self.directory,
            env=self._environment_of("show"),
            at_most=_SHOW_TIMEOUT,
        )
        if shown.code != 0:
            raise self._error("show", shown.stderr.decode(errors="replace"), shown.code)
        # Warnings about the configuration of the machine come before the document.
        warnings, brace, rest = shown.stdout.partition(b"{")
        try:
            document: Any = await asyncio.to_thread(json.loads, brace + rest)
        except ValueError as e:
            text = self.secrets.hide(warnings.decode(errors="replace").strip())
            raise Unavailable(f"{self.tool.name} show printed no JSON: {text[:600]}") from e
        return cast("dict[str, Any]", document)

    def _error(self, command: str, output: str, code: int) -> PipecdError:
        return explain(self.tool.name, command, self.secrets.hide(output), code)

    async def initialize(self) -> bool:
        """Runs `init`; returns whether another one would choose the same versions."""
        has_lock = (self.directory / LOCK_FILE).exists()
        # A lock file that does not stay may lack the checksums for other platforms.
        extra = {} if has_lock else {"TF_PLUGIN_CACHE_MAY_BREAK_DEPENDENCY_LOCK_FILE": "1"}
        done = await self._run(
            init_arguments(self.application), "init", has_variables=True, extra=extra
        )
        if done.code != 0:
            raise self._error("init", done.output, done.code)
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
            raise self._error("workspace select", done.output, done.code)

    async def _run(
        self,
        arguments: Sequence[str],
        command: str,
        *,
        has_variables: bool = False,
        extra: Mapping[str, str] | None = None,
        log: Log | None = None,
        outlives_us: bool = False,
    ) -> Finished:
        variables = (*self.target.vars, *self.application.vars) if has_variables else ()
        shown = shown_variables(variables)
        name, *flags = arguments
        colored = [] if self.is_colored or command in _WITHOUT_COLOR else ["-no-color"]
        flags = [*colored, *flags]
        self.log(" ".join((f"$ {self.tool.name} {name}", *shown, *map(_shown_flag, flags))))
        env = {**self._environment_of(command), **(extra or {})}
        if variables:
            key = f"TF_CLI_ARGS_{command}"
            given = (variable_arguments(variables), env.get(key, ""))
            env[key] = " ".join(text for text in given if text)
        return await run(
            [str(self.tool.path), name, *flags],
            cwd=self.directory,
            env=env,
            on_line=_until_rule(log or self.log),
            grace=_GRACE,
            stop=_STOP,
            outlives_us=outlives_us,
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


def _lock_of(killed: UnfinishedApply | None, done: Finished) -> StateLock | None:
    """Returns the lock because of which an apply failed if a killed one may have left it."""
    lock = lock_in_the_way(done.output) if done.code else None
    return lock if killed is not None and lock is not None and killed.holds(lock) else None


class _PlanLog:
    """The log of a plan, which holds its changes back until the secrets in them are known.

    Terraform prints them at the end of the plan; until then it prints what it reads.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._held: list[str] = []

    def write(self, line: str) -> None:
        if self._held or (line.strip() and not _PROGRESS.search(without_color(line))):
            self._held.append(line)
        else:
            self._log(line)

    def finish(self) -> None:
        """Writes what was held back."""
        for line in self._held:
            self._log(line)
        self._held.clear()


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
        self.applies = ApplyRecords(directory / "applying", grace=_GRACE)
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
            source,
            _named_files(settings),
            [
                str(tool.path),
                tool.version,
                settings.model_dump(mode="json"),
                target.vars,
                sorted(item for item in os.environ.items() if item[0].startswith("TF_")),
            ],
        )

        given = _given_variables(settings, target)
        secrets = Secrets(await asyncio.to_thread(given_secrets, source, settings.var_files, given))

        def terraform(data: DataDirectory) -> Terraform:
            return Terraform(
                application_id=application_id,
                tool=tool,
                application=settings,
                target=target,
                directory=directory,
                environment=environment,
                log=_masked_log(log, secrets) if log else _silent,
                is_colored=bool(log),
                data=data,
                secrets=secrets,
                applies=self.applies,
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


def _given_variables(settings: TerraformApplication, target: TerraformTarget) -> list[str]:
    """Returns the variables (`name=value`) that are not in files."""
    flags, envs = settings.command_flags, settings.command_envs
    texts = (*flags.shared, *flags.init, *flags.plan, *flags.apply)
    variables = (*envs.shared, *envs.init, *envs.plan, *envs.apply)
    own = (f"{name}={value}" for name, value in os.environ.items())
    return [
        *target.vars,
        *settings.vars,
        *(text.removeprefix("-").removeprefix("-").removeprefix("var=") for text in texts),
        *(
            text.removeprefix("TF_VAR_")
            for text in (*variables, *own)
            if text.startswith("TF_VAR_")
        ),
    ]


def _masked_log(log: Log, secrets: Secrets) -> Log:
    return lambda line: log(secrets.hide(line))


def _silent(_: str) -> None:
    return
