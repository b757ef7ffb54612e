# SPDX-License-Identifier: Apache-2.0
"""Quick sync or pipeline, and why: the first decision of every deployment.

`pipecd.piped.planning.planner` gathers the facts. It calls the plugins only if no rule decides,
because their responses may take a while.
"""

from dataclasses import dataclass

from pipecd.model.deployment import SyncStrategy
from pipecd.model.errors import UserMistake
from pipecd.model.regex import Regex, RegexSyntaxError


@dataclass(frozen=True)
class PluginStrategy:
    """The response of one plugin: a strategy, an error, or neither if it has no opinion."""

    plugin: str
    strategy: SyncStrategy | None = None
    summary: str = ""
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class StrategyFacts:
    """Everything the strategy depends on."""

    requested: SyncStrategy = SyncStrategy.AUTO
    requested_summary: str = ""
    has_pipeline: bool
    always_use_pipeline: bool = False
    kind_uses_pipeline: bool = False
    """Whether the v0 kind of the application deploys with its pipeline even for the first time."""
    pipeline_pattern: str = ""
    quick_sync_pattern: str = ""
    commit_message: str = ""
    is_commanded: bool = False
    is_deployed_before: bool
    can_quick_sync: bool = True
    """Whether any plugin of the application has a quick sync; stage plugins have none."""
    responses: tuple[PluginStrategy, ...] = ()


@dataclass(frozen=True)
class StrategyChoice:
    """How to deploy, and the summary that the console shows."""

    strategy: SyncStrategy
    summary: str


def choose_strategy(facts: StrategyFacts) -> StrategyChoice:
    """Returns the strategy; if no rule decides, the plugins do.

    The first plugin that requires the pipeline wins, else the last one with an opinion.
    """
    if (choice := strategy_by_rule(facts)) is not None:
        return choice
    for response in facts.responses:
        if response.strategy is None:
            continue
        choice = StrategyChoice(response.strategy, response.summary)
        if response.strategy is SyncStrategy.PIPELINE:
            return choice
    if choice is not None:
        return choice
    if errors := [f"{each.plugin}: {each.error}" for each in facts.responses if each.error]:
        raise UserMistake(f"no plugin could decide on a strategy ({'; '.join(errors)})")
    return StrategyChoice(SyncStrategy.PIPELINE, "Sync with the specified pipeline")


def strategy_by_rule(facts: StrategyFacts) -> StrategyChoice | None:
    """Returns the strategy that the first matching rule sets, or None if the plugins decide."""
    quick_sync, pipeline = SyncStrategy.QUICK_SYNC, SyncStrategy.PIPELINE
    if facts.requested is pipeline and not facts.has_pipeline:
        raise UserMistake(
            "unable to force sync with pipeline because no pipeline was specified",
            hint="add spec.pipeline to the application configuration, or use quick sync",
        )
    rules = (
        (
            facts.requested is not SyncStrategy.AUTO,
            facts.requested,
            facts.requested_summary,
        ),
        (
            not facts.has_pipeline,
            quick_sync,
            "Quick sync due to the pipeline was not configured",
        ),
        (
            facts.always_use_pipeline,
            pipeline,
            "Sync with the specified pipeline (alwaysUsePipeline was set)",
        ),
        (
            facts.kind_uses_pipeline,
            pipeline,
            "Sync with the specified progressive pipeline",
        ),
        (
            _matches_commit(facts, facts.pipeline_pattern),
            pipeline,
            "Sync progressively because the commit message was matching "
            f'"{facts.pipeline_pattern}"',
        ),
        (
            _matches_commit(facts, facts.quick_sync_pattern),
            quick_sync,
            f'Quick sync because the commit message was matching "{facts.quick_sync_pattern}"',
        ),
        (
            # Upstream cannot plan a pipeline that consists of WAIT, SCRIPT_RUN and the like only.
            not facts.can_quick_sync,
            pipeline,
            "Sync with the specified pipeline (no plugin of the application has a quick sync)",
        ),
        (
            not facts.is_deployed_before,
            quick_sync,
            "Quick sync, it seems this is the first deployment of the application",
        ),
    )
    matching = (StrategyChoice(strategy, text) for applies, strategy, text in rules if applies)
    return next(matching, None)


def _matches_commit(facts: StrategyFacts, pattern: str) -> bool:
    """Patterns apply to the subject line of commits, and not to deployments by a command."""
    if not pattern or facts.is_commanded:
        return False
    try:
        expression = Regex(pattern)
    except RegexSyntaxError:
        # Upstream ignores a pattern that does not compile.
        return False
    return expression.matches(facts.commit_message.split("\n", 1)[0])
