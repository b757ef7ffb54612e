# SPDX-License-Identifier: Apache-2.0
"""A template replaces the check that refers to it."""

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


def test_a_template_replaces_all_fields_but_the_arguments() -> None:
    named = {"template": {"name": "m", "appArgs": {"a": "b"}}, "failureLimit": 9, "query": "mine"}
    [check] = with_templates(options(metrics=[named]), SHARED).metrics
    assert (check.query, check.failure_limit) == ("q", 0)
    assert check.timeout == Duration(3), "upstream takes that of the stage"
    assert check.template.app_args == {"a": "b"}


def test_every_kind_of_check_may_refer_to_a_template() -> None:
    named = options(logs=[{"template": {"name": "l"}}], https=[{"template": {"name": "h"}}])
    resolved = with_templates(named, SHARED)
    assert (resolved.logs[0].query, resolved.https[0].url) == ("panic", "http://x")


def test_inline_checks_need_no_templates() -> None:
    plain = options(https=[{"url": "u", "interval": "1s"}])
    assert not needs_templates(plain)
    assert needs_templates(options(logs=[{"template": {"name": "l"}}]))
    assert with_templates(plain, SHARED) == plain
