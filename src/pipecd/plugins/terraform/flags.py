# SPDX-License-Identifier: Apache-2.0
"""The arguments of Terraform commands.

A saved plan contains its variables and targets, and Terraform refuses them when it is applied. So
the flags of an application that belong to planning are given to the plan, wherever they are
configured.
"""

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from pipecd.plugins.terraform.config import TerraformApplication

_WITH_VALUE = ("var", "var-file", "target", "target-file", "exclude", "exclude-file", "replace")
_PLANNING = (*_WITH_VALUE, "refresh", "refresh-only", "destroy")


def init_arguments(application: TerraformApplication) -> list[str]:
    """Returns the arguments of `init`, which variables are not needed for but allowed in."""
    flags = application.command_flags
    return ["init", "-input=false", *_var_files(application), *flags.shared, *flags.init]


def plan_arguments(application: TerraformApplication, out: Path | None) -> list[str]:
    """Returns the arguments of `plan`; with `out` the plan is saved."""
    flags = application.command_flags
    planning, _ = split_planning_flags(flags.apply)
    return [
        "plan",
        "-input=false",
        "-lock=false",
        "-detailed-exitcode",
        *([f"-out={out}"] if out else []),
        *_var_files(application),
        *flags.shared,
        *flags.plan,
        *planning,
    ]


def apply_arguments(application: TerraformApplication, saved: Path | None) -> list[str]:
    """Returns the arguments of `apply` for a saved plan; without one it plans itself."""
    flags = application.command_flags
    common = ["apply", "-input=false", "-auto-approve"]
    if saved is None:
        planning, _ = split_planning_flags(flags.plan)
        files = _var_files(application)
        return [*common, *files, *flags.shared, *planning, *flags.apply]
    _, others = split_planning_flags((*flags.shared, *flags.apply))
    return [*common, *others, str(saved)]


def split_planning_flags(flags: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the flags that belong to planning, and the others."""
    planning: list[str] = []
    others: list[str] = []
    remaining = iter(flags)
    for flag in remaining:
        name, has_value, _ = flag.lstrip("-").partition("=")
        if not flag.startswith("-") or name not in _PLANNING:
            others.append(flag)
            continue
        planning.append(flag)
        if name in _WITH_VALUE and not has_value:
            planning += [value for value in (next(remaining, None),) if value is not None]
    return planning, others


def variable_arguments(variables: Iterable[str]) -> str:
    """Returns `-var` arguments as the value of a variable `TF_CLI_ARGS_…`.

    Everybody on the machine can read command lines, but not the environment of a program.
    """
    return shlex.join(f"-var={variable}" for variable in variables)


def shown_variables(variables: Iterable[str]) -> list[str]:
    """Returns `-var` arguments as a log shows them, without values."""
    return [f"-var={variable.partition('=')[0]}=…" for variable in variables]


def _var_files(application: TerraformApplication) -> list[str]:
    return [f"-var-file={file}" for file in application.var_files]
