# SPDX-License-Identifier: Apache-2.0
"""What a plugin author needs to declare the configuration of a plugin."""

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
