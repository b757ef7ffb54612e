# SPDX-License-Identifier: Apache-2.0
"""What a plugin author needs to declare the configuration of a plugin."""

from pydantic import field_validator

from pipecd.config.application import SkipOn
from pipecd.config.catalog import NoOptions, PluginConfig, Section, V0Kind, V0Stage
from pipecd.config.rendering import RenderingSpec
from pipecd.config.spec import Advice, Reference, Spec, must_be_set, plain, refuse
from pipecd.config.units import Duration, Percentage, Replicas, Size
from pipecd.model.application import ApplicationKind

__all__ = [
    "Advice",
    "ApplicationKind",
    "Duration",
    "NoOptions",
    "Percentage",
    "PluginConfig",
    "PromoteOptions",
    "Reference",
    "RenderingSpec",
    "Replicas",
    "Section",
    "Size",
    "SkipOn",
    "Spec",
    "V0Kind",
    "V0Stage",
    "must_be_set",
    "plain",
    "refuse",
]


class PromoteOptions(Spec):
    """The share of the traffic that a new version gets, from 0 to 100."""

    percent: Percentage = Percentage(0)

    @field_validator("percent")
    @classmethod
    def _is_share(cls, value: Percentage) -> Percentage:
        if not 0 <= value <= 100:
            raise ValueError("must be between 0 and 100")
        return value
