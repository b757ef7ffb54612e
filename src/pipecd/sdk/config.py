# SPDX-License-Identifier: Apache-2.0
"""What a plugin author needs to declare the configuration of a plugin."""

from pipecd.config.application.pipeline import SkipOn
from pipecd.config.catalog import NoOptions, PluginConfig, Section, V0Kind, V0Stage
from pipecd.config.duration import Duration
from pipecd.config.percentage import Percentage
from pipecd.config.replicas import Replicas
from pipecd.config.rule import must_be_set, refuse
from pipecd.config.spec import Advice, Reference, Spec, plain
from pipecd.model.application import ApplicationKind

__all__ = [
    "Advice",
    "ApplicationKind",
    "Duration",
    "NoOptions",
    "Percentage",
    "PluginConfig",
    "Reference",
    "Replicas",
    "Section",
    "SkipOn",
    "Spec",
    "V0Kind",
    "V0Stage",
    "must_be_set",
    "plain",
    "refuse",
]
