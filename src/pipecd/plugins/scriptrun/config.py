# SPDX-License-Identifier: Apache-2.0
"""The configuration of the scriptrun plugin, in both generations."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field, field_validator

from pipecd.sdk.config import Duration, PluginConfig, Section, SkipOn, Spec, V0Stage

V0_TIMEOUT = Duration(6 * 3600)
NOTHING = ":"
"""The shell command that does nothing and succeeds."""


class ScriptRunOptions(Spec):
    """SCRIPT_RUN: a shell script, and another one that undoes it."""

    run: Annotated[str, Field(validate_default=True)] = ""
    env: Mapping[str, str] = Field(default_factory=dict[str, str])
    on_rollback: str = ""

    @field_validator("run")
    @classmethod
    def _given(cls, value: str) -> str:
        if not value:
            raise ValueError("SCRIPT_RUN stage requires run field")
        return value


class V0ScriptRunOptions(Spec):
    """SCRIPT_RUN of the first generation, where an empty script does nothing."""

    run: str = ""
    env: Mapping[str, str] = Field(default_factory=dict[str, str])
    timeout: Duration = V0_TIMEOUT
    on_rollback: str = ""
    skip_on: SkipOn = SkipOn()


class V0CustomSyncOptions(Spec):
    """CUSTOM_SYNC, the older name of SCRIPT_RUN."""

    run: Annotated[str, Field(validate_default=True)] = ""
    envs: Mapping[str, str] = Field(default_factory=dict[str, str])
    timeout: Duration = V0_TIMEOUT

    @field_validator("run")
    @classmethod
    def _given(cls, value: str) -> str:
        if not value:
            raise ValueError("the CUSTOM_SYNC stage requires run field")
        return value


def _script(options: V0ScriptRunOptions) -> Section:
    written = {"run": options.run or NOTHING, "env": {**options.env}}
    return {**written, "onRollback": options.on_rollback} if options.on_rollback else written


def _custom_sync(options: V0CustomSyncOptions) -> Section:
    return {"run": options.run, "env": {**options.envs}}


CONFIG = PluginConfig(
    name="scriptrun",
    stages={"SCRIPT_RUN": ScriptRunOptions},
    v0_stages={
        "SCRIPT_RUN": V0Stage(V0ScriptRunOptions, translate=_script, timeout=V0_TIMEOUT),
        "CUSTOM_SYNC": V0Stage(
            V0CustomSyncOptions, name="SCRIPT_RUN", translate=_custom_sync, timeout=V0_TIMEOUT
        ),
    },
)
