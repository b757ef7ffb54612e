# SPDX-License-Identifier: Apache-2.0
"""The configuration of the analysis plugin, in both generations."""

from collections.abc import Mapping

from pydantic import Field, field_validator

from pipecd.plugins.analysis.check import TEMPLATE_KIND, HttpCheck, LogCheck, MetricCheck
from pipecd.plugins.analysis.provider import AnalysisSettings
from pipecd.sdk.config import Duration, PluginConfig, SkipOn, Spec, V0Stage


class AnalysisApplication(Spec):
    """The section `plugins.analysis` of an application: arguments for every query."""

    app_custom_args: Mapping[str, str] = Field(default_factory=dict[str, str])


class AnalysisOptions(Spec):
    """ANALYSIS: what is measured, for how long."""

    duration: Duration = Field(default=Duration(0), validate_default=True)
    restart_threshold: int = 0
    metrics: tuple[MetricCheck, ...] = ()
    logs: tuple[LogCheck, ...] = ()
    https: tuple[HttpCheck, ...] = ()

    @field_validator("duration")
    @classmethod
    def _given(cls, value: Duration) -> Duration:
        if value == 0:
            raise ValueError("the ANALYSIS stage requires duration field")
        if value < 0:
            raise ValueError("must be longer than 0s")
        return value


class V0AnalysisOptions(AnalysisOptions):
    """ANALYSIS of the first generation, which says among its options when it is skipped."""

    skip_on: SkipOn = SkipOn()


class AnalysisTemplate(Spec):
    """The `spec` of the kind AnalysisTemplate: named checks that stages refer to."""

    metrics: Mapping[str, MetricCheck] = Field(default_factory=dict[str, MetricCheck])
    logs: Mapping[str, LogCheck] = Field(default_factory=dict[str, LogCheck])
    https: Mapping[str, HttpCheck] = Field(default_factory=dict[str, HttpCheck])


CONFIG = PluginConfig(
    name="analysis",
    application=AnalysisApplication,
    stages={"ANALYSIS": AnalysisOptions},
    piped=AnalysisSettings,
    kinds={TEMPLATE_KIND: AnalysisTemplate},
    v0_stages={"ANALYSIS": V0Stage(V0AnalysisOptions)},
)
