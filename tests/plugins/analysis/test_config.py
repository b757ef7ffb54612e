# SPDX-License-Identifier: Apache-2.0
"""The configuration of the analysis plugin, in both generations."""

from operator import attrgetter
from typing import Any

import pytest

from pipecd.config.application import SkipOn
from pipecd.config.decode import decode_plain
from pipecd.config.report import ConfigMistake
from pipecd.config.units import Duration
from pipecd.plugins.analysis.config import (
    CONFIG,
    AnalysisApplication,
    AnalysisOptions,
    AnalysisSettings,
    AnalysisTemplate,
)
from plugins.conftest import ReadV0

METRIC = {"provider": "p", "query": "q", "interval": "1m"}


def read(options: dict[str, Any]) -> AnalysisOptions:
    return decode_plain(options, AnalysisOptions, what="ANALYSIS")


DEFAULTS = [
    ("restart_threshold", 0),
    ("metrics.0.strategy", "THRESHOLD"),
    ("metrics.0.failure_limit", 0),
    ("metrics.0.skip_on_no_data", False),
    ("metrics.0.timeout", Duration(30)),
    ("metrics.0.deviation", "EITHER"),
    ("metrics.0.expected.min", None),
    ("metrics.0.expected.max", None),
    ("metrics.0.canary_args", {}),
    ("metrics.0.baseline_args", {}),
    ("metrics.0.primary_args", {}),
    ("metrics.0.template.name", ""),
    ("metrics.0.template.app_args", {}),
    ("logs.0.provider", ""),
    ("logs.0.query", ""),
    ("logs.0.failure_limit", 0),
    ("logs.0.skip_on_no_data", False),
    ("https.0.url", ""),
    ("https.0.method", ""),
    ("https.0.headers", ()),
    ("https.0.expected_code", 0),
    ("https.0.expected_response", ""),
    ("https.0.timeout", Duration(30)),
]


@pytest.mark.parametrize(("path", "expected"), DEFAULTS, ids=[path for path, _ in DEFAULTS])
def test_a_stage_has(path: str, expected: object) -> None:
    interval = {"interval": "1m"}
    options: Any = read(
        {"duration": "10m", "metrics": [METRIC], "logs": [interval], "https": [interval]}
    )
    for part in path.split("."):
        options = options[int(part)] if part.isdecimal() else attrgetter(part)(options)
    assert options == expected


def analysis(**changes: Any) -> dict[str, Any]:
    return {"duration": "10m", "metrics": [{**METRIC, **changes}]}


REFUSED = [
    pytest.param({}, "the ANALYSIS stage requires duration field", id="no duration"),
    pytest.param({"duration": "0s"}, "the ANALYSIS stage requires duration field", id="no time"),
    pytest.param(analysis(provider=""), 'missing "provider" field', id="a metric of no provider"),
    pytest.param(analysis(query=""), 'missing "query" field', id="a metric without a query"),
    pytest.param(
        analysis(interval="0s"), 'missing "interval" field', id="a metric without an interval"
    ),
    pytest.param(analysis(interval="-1s"), "must be longer than 0s", id="a negative interval"),
    pytest.param(
        analysis(deviation="UP"),
        '"deviation" have to be one of EITHER, HIGH or LOW',
        id="a deviation that does not exist",
    ),
    pytest.param(
        {"duration": "1m", "logs": [{"query": "q"}]},
        'missing "interval" field',
        id="a log check without an interval, which crashes upstream",
    ),
    pytest.param(
        {"duration": "1m", "https": [{"url": "u"}]},
        'missing "interval" field',
        id="an HTTP check without an interval, which crashes upstream",
    ),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_a_stage_is_refused_with(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigMistake, match=message):
        read(options)


ACCEPTED = [
    pytest.param(
        analysis(template={"name": "t"}, query="", interval="0s"), id="a template instead"
    ),
    pytest.param(analysis(strategy="FOO"), id="an unknown strategy, which the stage refuses"),
    pytest.param(analysis(expected={"min": 1, "max": 2.5}), id="a range"),
    pytest.param(analysis(expected={"max": 0}), id="a range that ends at nothing"),
]


@pytest.mark.parametrize("options", ACCEPTED)
def test_a_stage_is_read_with(options: dict[str, Any]) -> None:
    assert len(read(options).metrics) == 1


def test_a_bound_of_zero_is_a_bound() -> None:
    assert read(analysis(expected={"max": 0})).metrics[0].expected.max == 0


def test_the_section_holds_arguments_for_every_query() -> None:
    section = decode_plain({"appCustomArgs": {"a": "b"}}, AnalysisApplication, what="analysis")
    assert section.app_custom_args == {"a": "b"}


def test_templates_are_read_by_name() -> None:
    spec = {"metrics": {"m": METRIC}, "logs": {"l": {"interval": "1m"}}, "https": {}}
    template = decode_plain(spec, AnalysisTemplate, what="AnalysisTemplate")
    assert template.metrics["m"].query == "q"
    assert CONFIG.kinds == {"AnalysisTemplate": AnalysisTemplate}


def provider(type_: str, **config: str) -> dict[str, Any]:
    return {"analysisProviders": [{"name": "a", "type": type_, "config": config}]}


PROVIDERS_REFUSED = [
    pytest.param(provider("GRAPHITE"), "unsupported analysis provider type: GRAPHITE", id="type"),
    pytest.param(provider(""), "unsupported analysis provider type: ", id="no type"),
    pytest.param(
        provider("PROMETHEUS"),
        "prometheus analysis provider requires the address",
        id="Prometheus without an address",
    ),
    pytest.param(
        provider("DATADOG", applicationKeyFile="b"),
        "either datadog APIKeyFile or APIKeyData must be set",
        id="Datadog without an API key",
    ),
    pytest.param(
        provider("DATADOG", apiKeyFile="b"),
        "either datadog ApplicationKeyFile or ApplicationKeyData must be set",
        id="Datadog without an application key",
    ),
    pytest.param(
        provider("DATADOG", apiKeyFile="a", apiKeyData="b", applicationKeyFile="c"),
        "only datadog APIKeyFile or APIKeyData can be set",
        id="Datadog with two API keys",
    ),
    pytest.param(
        provider("DATADOG", apiKeyFile="a", applicationKeyData="b", applicationKeyFile="c"),
        "only datadog ApplicationKeyFile or ApplicationKeyData can be set",
        id="Datadog with two application keys",
    ),
]


@pytest.mark.parametrize(("settings", "message"), PROVIDERS_REFUSED)
def test_a_provider_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigMistake, match=message):
        decode_plain(settings, AnalysisSettings, what="analysis")


@pytest.mark.parametrize(
    ("settings", "address"),
    [
        pytest.param(provider("PROMETHEUS", address="http://p"), "http://p", id="Prometheus"),
        pytest.param(
            provider("DATADOG", apiKeyData="a", applicationKeyData="b"),
            "datadoghq.com",
            id="Datadog has a site by default",
        ),
        pytest.param(
            provider("DATADOG", address="datadoghq.eu", apiKeyFile="a", applicationKeyFile="b"),
            "datadoghq.eu",
            id="Datadog elsewhere",
        ),
        pytest.param(provider("STACKDRIVER"), "", id="Stackdriver"),
    ],
)
def test_the_address_of_a_provider(settings: dict[str, Any], address: str) -> None:
    [provider] = decode_plain(settings, AnalysisSettings, what="analysis").analysis_providers
    assert provider.address == address


def test_a_v0_stage_has_the_same_checks(read_v0: ReadV0) -> None:
    options = {**analysis(), "skipOn": {"paths": ["docs/**"]}}
    [stage] = read_v0("ECSApp", {}, [{"name": "ANALYSIS", "with": options}]).pipeline.stages
    assert stage.skip_on == SkipOn(paths=("docs/**",))
    assert "skipOn" not in stage.with_
    assert read(stage.with_) == read(options)


def test_a_v0_stage_without_a_duration_is_refused(read_v0: ReadV0) -> None:
    with pytest.raises(ConfigMistake, match="the ANALYSIS stage requires duration field"):
        read_v0("ECSApp", {}, [{"name": "ANALYSIS", "with": {}}])
