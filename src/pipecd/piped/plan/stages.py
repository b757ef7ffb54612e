# SPDX-License-Identifier: Apache-2.0
"""The list of stages of a deployment, put together from the answers of its plugins."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pipecd.model.deployment import StageStatus
from pipecd.model.errors import UserMistake
from pipecd.proto.model import deployment_pb2
from pipecd.proto.model.deployment_pb2 import PipelineStage

NewId = Callable[[], str]


@dataclass(frozen=True)
class StageAnswer:
    """The stages that one plugin plans; `asked` are the names by index that it was asked for."""

    plugin: str
    stages: Sequence[PipelineStage]
    asked: Mapping[int, str]


@dataclass(frozen=True)
class StageMint:
    """Where the ids and the time of new stages come from."""

    new_id: NewId
    now: int


def quick_sync_stages(answers: Iterable[StageAnswer], mint: StageMint) -> tuple[PipelineStage, ...]:
    """The stages of a quick sync: those of every plugin in turn, then what rolls them back."""
    given = [stage for answer in answers for stage in _checked_names(answer)]
    forward = [stage for stage in given if not stage.rollback]
    if not forward:
        raise UserMistake(
            "no plugin of the application has a quick sync",
            hint="set planner.alwaysUsePipeline, or add a plugin that deploys under spec.plugins",
        )
    return _chained(forward, [stage for stage in given if stage.rollback], mint)


def pipeline_stages(answers: Sequence[StageAnswer], mint: StageMint) -> tuple[PipelineStage, ...]:
    """The stages of a pipeline in the order of their indexes, then what rolls them back."""
    for answer in answers:
        _check_indexes(answer)
    given = [stage for answer in answers for stage in _checked_names(answer)]
    ordered = sorted(given, key=lambda stage: stage.index)
    forward = [stage for stage in ordered if not stage.rollback]
    if not forward:
        raise UserMistake("the pipeline has no stages", hint="add stages under spec.pipeline")
    return _chained(forward, [stage for stage in ordered if stage.rollback], mint)


def _checked_names(answer: StageAnswer) -> Sequence[PipelineStage]:
    if any(not stage.name for stage in answer.stages):
        raise UserMistake(f"plugin {answer.plugin} planned a stage without a name")
    return answer.stages


def _check_indexes(answer: StageAnswer) -> None:
    """A plugin answers each stage it was asked for once, and rolls back each at most once."""
    planned = [stage.index for stage in answer.stages if not stage.rollback]
    rollbacks = [stage.index for stage in answer.stages if stage.rollback]
    for index in (*planned, *rollbacks):
        if index not in answer.asked:
            raise UserMistake(
                f"plugin {answer.plugin} planned a stage at index {index}, which is not its own"
            )
    for indexes in (planned, rollbacks):
        if len(set(indexes)) < len(indexes):
            twice = next(index for index in indexes if indexes.count(index) > 1)
            raise UserMistake(f"plugin {answer.plugin} planned index {twice} twice")
    if left_out := sorted(answer.asked.keys() - set(planned)):
        name = answer.asked[left_out[0]]
        raise UserMistake(f"plugin {answer.plugin} left out stage {name} at index {left_out[0]}")


def _chained(
    forward: Sequence[PipelineStage], rollback: Sequence[PipelineStage], mint: StageMint
) -> tuple[PipelineStage, ...]:
    """Fresh copies with ids, each forward stage requiring the one before it."""
    chain: list[PipelineStage] = []
    for stage in forward:
        requires = [chain[-1].id] if chain else []
        chain.append(_fresh(stage, mint, requires))
    return (*chain, *(_fresh(stage, mint, []) for stage in rollback))


def _fresh(stage: PipelineStage, mint: StageMint, requires: Sequence[str]) -> PipelineStage:
    fresh = PipelineStage()
    fresh.CopyFrom(stage)
    fresh.id = mint.new_id()
    fresh.status = deployment_pb2.StageStatus.ValueType(StageStatus.NOT_STARTED_YET)
    del fresh.requires[:]
    fresh.requires.extend(requires)
    fresh.visible = not stage.rollback
    fresh.created_at = fresh.updated_at = mint.now
    fresh.completed_at = 0
    return fresh
