# SPDX-License-Identifier: Apache-2.0
"""How long the stages of earlier deployments took, to compare a deployment with."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from statistics import median_low

from pipecd.controlplane.console.pipeline_view import started_at
from pipecd.controlplane.usecases.deployments import is_approvable
from pipecd.model.deployment import StageStatus
from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage

# How many successful deployments before it one is compared with.
COMPARED_DEPLOYMENTS = 10
# Fewer durations say nothing.
_MIN_DURATIONS = 3
# A stage is slow if it takes this many times as long as usual, and this many seconds longer.
_SLOW_FACTOR, _SLOW_SECONDS = 2, 10

# The name of a stage, and which one of this name it is.
StageKey = tuple[str, int]


def usual_durations(deployments: Iterable[Deployment]) -> dict[StageKey, int]:
    """The median of the seconds that each stage took, where there are enough of them."""
    durations: defaultdict[StageKey, list[int]] = defaultdict(list)
    for deployment in deployments:
        for key, stage in stages_by_key(deployment):
            if stage.status == StageStatus.SUCCESS and not is_approvable(stage):
                taken = stage.completed_at - started_at(stage, deployment)
                durations[key].append(max(taken, 0))
    return {key: median_low(each) for key, each in durations.items() if len(each) >= _MIN_DURATIONS}


def stages_by_key(deployment: Deployment) -> Iterator[tuple[StageKey, PipelineStage]]:
    """The stages, each with what identifies it in other deployments of the application."""
    seen: Counter[str] = Counter()
    for stage in deployment.stages:
        seen[stage.name] += 1
        yield (stage.name, seen[stage.name]), stage


def usual_by_stage(deployment: Deployment, usual: Mapping[StageKey, int]) -> dict[str, int]:
    """The usual seconds of the stages of a deployment, by the id of the stage."""
    return {stage.id: usual[key] for key, stage in stages_by_key(deployment) if key in usual}


def is_slow(seconds: int, usual: int) -> bool:
    """Whether a stage takes conspicuously longer than it usually does."""
    return seconds > _SLOW_FACTOR * usual and seconds > usual + _SLOW_SECONDS
