# SPDX-License-Identifier: Apache-2.0
"""The configuration of the scriptrun plugin, in both generations."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field, field_validator

from pipecd.sdk.config import Duration, PluginConfig, SkipOn, Spec, V0Stage

V0_TIMEOUT = Duration(6 * 3600)
NO_OP = ":"
"""The shell command that does nothing and succeeds."""


class ScriptRunOptions(Spec):
    """SCRIPT_RUN: a shell script, and another one for the rollback."""

    run: Annotated[str, Field(validate_default=True)] = ""
    env: Mapping[str, str] = Field(default_factory=dict[str, str])
    on_rollback: str = ""

    @field_validator("run")
    @classmethod
    def _not_empty(cls, value: str) -> str:
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
    def _not_empty(cls, value: str) -> str:
        if not value:
            raise ValueError("the CUSTOM_SYNC stage requires run field")
        return value


CONFIG = PluginConfig(
    name="scriptrun",
    stages={"SCRIPT_RUN": ScriptRunOptions},
    v0_stages={
        "SCRIPT_RUN": V0Stage(
            V0ScriptRunOptions,
            translate=lambda options: {
                "run": options.run or NO_OP,
                "env": {**options.env},
                **({"onRollback": options.on_rollback} if options.on_rollback else {}),
            },
            timeout=V0_TIMEOUT,
        ),
        "CUSTOM_SYNC": V0Stage(
            V0CustomSyncOptions,
            name="SCRIPT_RUN",
            translate=lambda options: {"run": options.run, "env": {**options.envs}},
            timeout=V0_TIMEOUT,
        ),
    },
)
