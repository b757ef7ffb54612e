# SPDX-License-Identifier: Apache-2.0
"""The configuration of the wait plugin, in both generations."""

from pydantic import Field, field_validator

from pipecd.sdk.config import Duration, PluginConfig, SkipOn, Spec, V0Stage

V0_DURATION = Duration(60)


class WaitOptions(Spec):
    """WAIT: how long."""

    duration: Duration = Field(default=Duration(0), validate_default=True)

    @field_validator("duration")
    @classmethod
    def _positive(cls, value: Duration) -> Duration:
        if value <= 0:
            raise ValueError("duration must be greater than 0")
        return value


class V0WaitOptions(Spec):
    """WAIT of the first generation; the default duration is one minute."""

    duration: Duration = Duration(0)
    skip_on: SkipOn = SkipOn()


CONFIG = PluginConfig(
    name="wait",
    stages={"WAIT": WaitOptions},
    v0_stages={
        "WAIT": V0Stage(
            V0WaitOptions,
            translate=lambda options: {
                "duration": str(options.duration if options.duration > 0 else V0_DURATION)
            },
        )
    },
)
