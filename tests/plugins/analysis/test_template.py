# SPDX-License-Identifier: Apache-2.0
"""A check that is shared replaces the one that names it, down to its timeout."""

from typing import Any

from pipecd.config.decode import decode_plain
from pipecd.plugins.analysis.config import (
    AnalysisOptions,
    AnalysisTemplate,
    needs_templates,
    with_templates,
)
from pipecd.sdk import Duration


def options(**checks: Any) -> AnalysisOptions:
    return decode_plain({"duration": "1m", **checks}, AnalysisOptions, what="ANALYSIS")


SHARED = decode_plain(
    {
        "metrics": {"m": {"provider": "p", "query": "q", "interval": "5s", "timeout": "3s"}},
        "logs": {"l": {"provider": "p", "query": "panic", "interval": "5s"}},
        "https": {"h": {"url": "http://x", "interval": "5s"}},
    },
    AnalysisTemplate,
    what="AnalysisTemplate",
)


def test_the_whole_check_is_taken_and_the_arguments_are_kept() -> None:
    named = {"template": {"name": "m", "appArgs": {"a": "b"}}, "failureLimit": 9, "query": "mine"}
    [found] = with_templates(options(metrics=[named]), SHARED).metrics
    assert (found.query, found.failure_limit) == ("q", 0)
    assert found.timeout == Duration(3), "upstream takes that of the stage"
    assert found.template.app_args == {"a": "b"}


def test_every_kind_of_check_may_be_shared() -> None:
    named = options(logs=[{"template": {"name": "l"}}], https=[{"template": {"name": "h"}}])
    found = with_templates(named, SHARED)
    assert (found.logs[0].query, found.https[0].url) == ("panic", "http://x")


def test_a_stage_that_writes_its_checks_needs_none() -> None:
    plain = options(https=[{"url": "u", "interval": "1s"}])
    assert not needs_templates(plain)
    assert needs_templates(options(logs=[{"template": {"name": "l"}}]))
    assert with_templates(plain, SHARED) == plain
