# SPDX-License-Identifier: Apache-2.0
"""Workers for what the content of a repository drives: a plugin gets them as `Host.workers`."""

from pipecd.config.rendering import RenderingSpec
from pipecd.gotemplate.template import has_actions
from pipecd.program.workers import WorkerLimits, WorkerPool

__all__ = ["WorkerPool", "has_actions", "worker_limits"]


def worker_limits(rendering: RenderingSpec) -> WorkerLimits:
    """Returns the limits of workers: those of rendering, which programs need, or tighter ones."""
    most = WorkerLimits()
    return WorkerLimits(
        seconds=min(most.seconds, rendering.timeout or most.seconds),
        memory=min(most.memory, rendering.memory or most.memory),
    )
