# SPDX-License-Identifier: Apache-2.0
"""Quick sync or pipeline, and why; the first decision of every deployment.

`pipecd.piped.planning` gathers the facts and shows the reason to people. The plugins are only asked
when no rule decides, because their answers may take a while.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from pipecd.model.deployment import SyncStrategy
from pipecd.model.errors import UserMistake


@dataclass(frozen=True)
class Answer:
    """What one plugin says about this change: its choice, an error, or that it has no opinion."""

    plugin: str
    strategy: SyncStrategy | None = None
    summary: str = ""
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class PlanFacts:
    """Everything the choice depends on."""

    requested: SyncStrategy = SyncStrategy.AUTO
    requested_because: str = ""
    has_pipeline: bool
    always_use_pipeline: bool = False
    pipeline_pattern: str = ""
    quick_sync_pattern: str = ""
    commit_message: str = ""
    is_commanded: bool = False
    is_deployed_before: bool
    can_quick_sync: bool = True
    """Whether any plugin of the application has a quick sync; those of stages only have none."""
    answers: tuple[Answer, ...] = ()


@dataclass(frozen=True)
class Choice:
    """How to deploy, and the reason people read."""

    strategy: SyncStrategy
    summary: str


def choose_strategy(facts: PlanFacts) -> Choice:
    """The choice, once the plugins were asked if they had to be."""
    return ruled(facts) or _answered(facts)


def ruled(facts: PlanFacts) -> Choice | None:
    """The choice that needs no plugin; None when the plugins have to be asked."""
    for rule in _RULES:
        if (choice := rule(facts)) is not None:
            return choice
    return None


def _requested(facts: PlanFacts) -> Choice | None:
    if facts.requested is SyncStrategy.AUTO:
        return None
    if facts.requested is SyncStrategy.PIPELINE and not facts.has_pipeline:
        raise UserMistake(
            "unable to force sync with pipeline because no pipeline was specified",
            hint="add spec.pipeline to the application configuration, or use quick sync",
        )
    return Choice(facts.requested, facts.requested_because)


def _without_pipeline(facts: PlanFacts) -> Choice | None:
    if facts.has_pipeline:
        return None
    return Choice(SyncStrategy.QUICK_SYNC, "Quick sync due to the pipeline was not configured")


def _always_pipeline(facts: PlanFacts) -> Choice | None:
    if not facts.always_use_pipeline:
        return None
    summary = "Sync with the specified pipeline (alwaysUsePipeline was set)"
    return Choice(SyncStrategy.PIPELINE, summary)


def _matching_pipeline(facts: PlanFacts) -> Choice | None:
    if not _matches(facts, facts.pipeline_pattern):
        return None
    return Choice(
        SyncStrategy.PIPELINE,
        f'Sync progressively because the commit message was matching "{facts.pipeline_pattern}"',
    )


def _matching_quick_sync(facts: PlanFacts) -> Choice | None:
    if not _matches(facts, facts.quick_sync_pattern):
        return None
    return Choice(
        SyncStrategy.QUICK_SYNC,
        f'Quick sync because the commit message was matching "{facts.quick_sync_pattern}"',
    )


def _nothing_to_quick_sync(facts: PlanFacts) -> Choice | None:
    # Upstream cannot plan a pipeline that is made of WAIT, SCRIPT_RUN and the like only.
    if facts.can_quick_sync:
        return None
    summary = "Sync with the specified pipeline (no plugin of the application has a quick sync)"
    return Choice(SyncStrategy.PIPELINE, summary)


def _first_deployment(facts: PlanFacts) -> Choice | None:
    if facts.is_deployed_before:
        return None
    summary = "Quick sync, it seems this is the first deployment of the application"
    return Choice(SyncStrategy.QUICK_SYNC, summary)


_RULES: tuple[Callable[[PlanFacts], Choice | None], ...] = (
    _requested,
    _without_pipeline,
    _always_pipeline,
    _matching_pipeline,
    _matching_quick_sync,
    _nothing_to_quick_sync,
    _first_deployment,
)


def _matches(facts: PlanFacts, pattern: str) -> bool:
    """A pattern is for commits that nobody commands, and only looks at the subject line."""
    if not pattern or facts.is_commanded:
        return False
    try:
        expression = re.compile(pattern)
    except re.error:
        # Upstream plans as if a pattern that does not compile were not there.
        return False
    return expression.search(facts.commit_message.split("\n", 1)[0]) is not None


def _answered(facts: PlanFacts) -> Choice:
    """The first plugin that wants the pipeline wins, else the last one that has an opinion."""
    choice: Choice | None = None
    for answer in facts.answers:
        if answer.strategy is None:
            continue
        choice = Choice(answer.strategy, answer.summary)
        if answer.strategy is SyncStrategy.PIPELINE:
            return choice
    if choice is not None:
        return choice
    if errors := [f"{a.plugin}: {a.error}" for a in facts.answers if a.error]:
        raise UserMistake(f"no plugin could decide on a strategy ({'; '.join(errors)})")
    return Choice(SyncStrategy.PIPELINE, "Sync with the specified pipeline")
