# SPDX-License-Identifier: Apache-2.0
"""Quick sync or pipeline, and the summary that the console shows."""

from dataclasses import replace
from typing import Any

import pytest

from pipecd.model.deployment import SyncStrategy
from pipecd.model.errors import UserMistake
from pipecd.piped.plan.strategy import (
    PluginStrategy,
    StrategyFacts,
    choose_strategy,
    strategy_by_rule,
)

QUICK, PIPELINE = SyncStrategy.QUICK_SYNC, SyncStrategy.PIPELINE


def facts(**changes: Any) -> StrategyFacts:
    return replace(StrategyFacts(has_pipeline=True, is_deployed_before=True), **changes)


@pytest.mark.parametrize(
    ("given", "strategy", "summary"),
    [
        pytest.param(facts(requested=QUICK, requested_summary="Sync by alice", always_use_pipeline=True), QUICK, "Sync by alice", id="the strategy of a command beats every rule"),
        pytest.param(facts(requested=PIPELINE, requested_summary="by bob", is_deployed_before=False), PIPELINE, "by bob", id="a command may request the pipeline on the first deployment"),
        pytest.param(facts(has_pipeline=False, always_use_pipeline=True), QUICK, "Quick sync due to the pipeline was not configured", id="without a pipeline there is only quick sync"),
        pytest.param(facts(kind_uses_pipeline=True, is_deployed_before=False), PIPELINE, "Sync with the specified progressive pipeline", id="a kind that always uses its pipeline"),
        pytest.param(facts(always_use_pipeline=True, kind_uses_pipeline=True), PIPELINE, "Sync with the specified pipeline (alwaysUsePipeline was set)", id="alwaysUsePipeline beats the kind"),
        pytest.param(facts(always_use_pipeline=True, is_deployed_before=False), PIPELINE, "Sync with the specified pipeline (alwaysUsePipeline was set)", id="alwaysUsePipeline beats the first deployment"),
        pytest.param(facts(pipeline_pattern="^feat", quick_sync_pattern="feat", commit_message="feat: x"), PIPELINE, 'Sync progressively because the commit message was matching "^feat"', id="the pipeline pattern is tried first"),
        pytest.param(facts(quick_sync_pattern="typo", commit_message="fix a typo"), QUICK, 'Quick sync because the commit message was matching "typo"', id="a pattern is searched anywhere in the subject"),
        pytest.param(facts(is_deployed_before=False), QUICK, "Quick sync, it seems this is the first deployment of the application", id="the first deployment is a quick sync"),
        pytest.param(facts(is_deployed_before=False, can_quick_sync=False), PIPELINE, "Sync with the specified pipeline (no plugin of the application has a quick sync)", id="a pipeline of scripts and waits runs from the first deployment on"),
    ],
)  # fmt: skip
def test_a_rule_decides(given: StrategyFacts, strategy: SyncStrategy, summary: str) -> None:
    choice = strategy_by_rule(given)
    assert choice is not None
    assert choice == choose_strategy(given)
    assert (choice.strategy, choice.summary) == (strategy, summary)


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(facts(), id="nothing special was configured"),
        pytest.param(facts(quick_sync_pattern="typo", commit_message="typo", is_commanded=True), id="patterns are not for commanded deployments"),
        pytest.param(facts(quick_sync_pattern="typo", commit_message="fix\n\na typo"), id="patterns see the subject only"),
        pytest.param(facts(pipeline_pattern="(", commit_message="("), id="a pattern that does not compile is not there"),
    ],
)  # fmt: skip
def test_the_plugins_decide_if_no_rule_does(given: StrategyFacts) -> None:
    assert strategy_by_rule(given) is None


@pytest.mark.parametrize(
    ("responses", "strategy", "summary"),
    [
        pytest.param((PluginStrategy("a", QUICK, "scale"), PluginStrategy("b", PIPELINE, "image"), PluginStrategy("c", QUICK, "x")), PIPELINE, "image", id="the first plugin that requires the pipeline wins"),
        pytest.param((PluginStrategy("a", QUICK, "one"), PluginStrategy("b", QUICK, "two")), QUICK, "two", id="else the last response counts"),
        pytest.param((PluginStrategy("a", error="no manifests"), PluginStrategy("b", QUICK, "two")), QUICK, "two", id="a failed plugin is ignored"),
        pytest.param((), PIPELINE, "Sync with the specified pipeline", id="without responses the pipeline runs"),
    ],
)  # fmt: skip
def test_the_responses_of_plugins(
    responses: tuple[PluginStrategy, ...], strategy: SyncStrategy, summary: str
) -> None:
    choice = choose_strategy(facts(responses=responses))
    assert (choice.strategy, choice.summary) == (strategy, summary)


def test_the_error_names_the_cause_of_each_failed_plugin() -> None:
    with pytest.raises(UserMistake, match="k8s: no manifests found; ecs: no task"):
        choose_strategy(
            facts(
                responses=(
                    PluginStrategy("k8s", error="no manifests found"),
                    PluginStrategy("ecs", error="no task"),
                )
            )
        )


def test_the_pipeline_cannot_be_forced_without_one() -> None:
    with pytest.raises(UserMistake, match="unable to force sync with pipeline because no pipeline"):
        choose_strategy(facts(requested=PIPELINE, has_pipeline=False))
