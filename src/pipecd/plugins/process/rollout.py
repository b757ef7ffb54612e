# SPDX-License-Identifier: Apache-2.0
"""Decides from a status whether a rollout is done, failed, or goes on."""

from dataclasses import dataclass

from pipecd.plugins.process.instance import NOT_HEALTHY, ApplicationStatus, Instance, Phase

MAX_EXITS = 2
"""A program that exits so often while it is rolled out has failed."""


@dataclass(frozen=True)
class Progress:
    """How far a rollout is; `failed` is the instance that shows why it cannot succeed."""

    text: str
    is_done: bool = False
    failure: str = ""
    failed: Instance | None = None


def rollout_progress(status: ApplicationStatus, variant: str) -> Progress:
    """Returns the progress of the desired version of a variant."""
    wanted = status.desired.variants[variant]
    instances = status.of(variant)
    healthy = sum(instance.phase is Phase.HEALTHY for instance in instances)
    text = f"{healthy} of {wanted.replicas} instances of {variant} are healthy"
    if status.listen_error:
        return Progress(text, failure=status.listen_error)
    for instance in instances:
        if instance.phase is Phase.EXITED and instance.crashes >= MAX_EXITS:
            failure = f"{variant} instance {instance.index} {instance.exit}"
            return Progress(text, failure=failure, failed=instance)
    identity = wanted.program.identity
    is_served = status.serving.get(variant) == identity or not status.desired.weights.get(variant)
    is_listening = status.listener == status.desired.listener
    return Progress(text, is_done=healthy >= wanted.replicas and is_served and is_listening)


def timeout_failure(status: ApplicationStatus, variant: str) -> Progress:
    """Returns the failure of a rollout that took too long, with the instance that shows why."""
    wanted = status.desired.variants[variant]
    progress = rollout_progress(status, variant)
    sick = [i for i in status.of(variant) if i.phase is not Phase.HEALTHY]
    if not sick:
        return Progress(progress.text, failure=f"{progress.text}, but they are not routed to")
    # How it ended the last time says more than that it has just been started again.
    failing, ended = sick[0].health, sick[0].exit
    why = failing or ended if sick[0].phase is Phase.UNHEALTHY else ended or failing
    why = why or "it has not answered yet"
    within = f"was not healthy within {wanted.health.timeout:g}s: "
    failure = (
        f"{variant} instance {sick[0].index} {'' if why.startswith(NOT_HEALTHY) else within}{why}"
    )
    return Progress(progress.text, failure=failure, failed=sick[0])
