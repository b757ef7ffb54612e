# SPDX-License-Identifier: Apache-2.0
"""The configuration of the analysis plugin: checks, templates, providers and the stage."""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Self, TypeVar

from pydantic import Field, field_validator, model_validator

from pipecd.sdk import UserMistake
from pipecd.sdk.config import Duration, PluginConfig, Reference, SkipOn, Spec, V0Stage, refuse

TEMPLATE_KIND = "AnalysisTemplate"
DEVIATIONS = ("EITHER", "HIGH", "LOW")


_SHOWN_QUERY = 60
"""The length of a query in the name of its check."""


class TemplateReference(Spec):
    """The name of a check in an AnalysisTemplate, with arguments for its query."""

    name: str = ""
    app_args: Mapping[str, str] = Field(default_factory=dict[str, str])


class ExpectedRange(Spec):
    """The inclusive range of good values."""

    min: float | None = None
    max: float | None = None


class Check(Spec):
    """The fields of all checks; a check runs every `interval`."""

    section: ClassVar[str]
    """The key of such checks in a stage and in a template."""
    kind: ClassVar[str]
    """What people call such a check."""

    interval: Duration = Duration(0)
    failure_limit: int = 0
    skip_on_no_data: bool = False
    timeout: Duration = Duration(30)
    template: TemplateReference = TemplateReference()

    @property
    def _is_inline(self) -> bool:
        return not self.template.name

    @model_validator(mode="after")
    def _has_interval(self) -> Self:
        refuse(
            self,
            # Upstream checks this for metrics only and crashes on the others.
            (
                self._is_inline and self.interval == 0,
                "interval",
                'missing "interval" field',
            ),
            (self.interval < 0, "interval", "must be longer than 0s"),
        )
        return self

    @property
    def subject(self) -> str:
        """What is checked, short enough for the reason of a failure."""
        raise NotImplementedError

    def references(self) -> Iterator[Reference]:
        """Yields the template that replaces the check."""
        if self.template.name:
            yield Reference(("template", "name"), TEMPLATE_KIND, self.section, self.template.name)


class MetricCheck(Check):
    """A query whose result must be in a range, or like that of another variant."""

    section = "metrics"
    kind = "metric check"
    strategy: str = "THRESHOLD"
    provider: str = ""
    query: str = ""
    expected: ExpectedRange = ExpectedRange()
    deviation: str = "EITHER"
    canary_args: Mapping[str, str] = Field(default_factory=dict[str, str])
    baseline_args: Mapping[str, str] = Field(default_factory=dict[str, str])
    primary_args: Mapping[str, str] = Field(default_factory=dict[str, str])

    @property
    def subject(self) -> str:
        return _provider_query(self.provider, self.query)

    @model_validator(mode="after")
    def _has_required_fields(self) -> Self:
        is_inline = self._is_inline
        refuse(
            self,
            (is_inline and not self.provider, "provider", 'missing "provider" field'),
            (is_inline and not self.query, "query", 'missing "query" field'),
            (
                is_inline and self.deviation not in DEVIATIONS,
                "deviation",
                '"deviation" have to be one of EITHER, HIGH or LOW',
            ),
        )
        return self


class LogCheck(Check):
    """A search in logs that must match no entry."""

    section = "logs"
    kind = "log check"
    provider: str = ""
    query: str = ""

    @property
    def subject(self) -> str:
        return _provider_query(self.provider, self.query)


class HttpHeader(Spec):
    """One header of a request."""

    key: str = ""
    value: str = ""


class HttpCheck(Check):
    """A request that must return the expected status code; the default method is GET."""

    section = "https"
    kind = "HTTP check"
    url: str = ""
    method: str = ""
    headers: tuple[HttpHeader, ...] = ()
    expected_code: int = 0
    expected_response: str = ""

    @property
    def subject(self) -> str:
        # A password or a token of the address is nothing for a reason, which notifications repeat.
        address = re.sub(r"//[^/?#]*@", "//", re.split(r"[?#]", self.url, maxsplit=1)[0])
        return f"{self.method or 'GET'} {address}"


def _provider_query(provider: str, query: str) -> str:
    line = " ".join(query.split())
    shown = line if len(line) <= _SHOWN_QUERY else line[: _SHOWN_QUERY - 1] + "…"
    return f"{provider}: {shown}"


PROMETHEUS = "PROMETHEUS"
DATADOG = "DATADOG"
STACKDRIVER = "STACKDRIVER"
PROVIDER_TYPES = (PROMETHEUS, DATADOG, STACKDRIVER)
DATADOG_SITE = "datadoghq.com"


class ProviderConfig(Spec):
    """The settings of one provider; its type decides which ones are used."""

    address: str = ""
    username_file: str = ""
    password_file: str = ""
    api_key_file: str = ""
    api_key_data: Annotated[str, Field(repr=False)] = ""
    application_key_file: str = ""
    application_key_data: Annotated[str, Field(repr=False)] = ""
    service_account_file: str = ""


class AnalysisProvider(Spec):
    """A provider that checks refer to by name."""

    name: str = ""
    type: str = Field(default="", validate_default=True)
    config: ProviderConfig = ProviderConfig()

    @field_validator("type")
    @classmethod
    def _is_provider_type(cls, value: str) -> str:
        if value not in PROVIDER_TYPES:
            raise ValueError(
                f"unsupported analysis provider type: {value}, "
                f"write one of {', '.join(PROVIDER_TYPES)}"
            )
        return value

    @model_validator(mode="after")
    def _has_required_fields(self) -> Self:
        c, datadog = self.config, self.type == DATADOG
        refuse(
            self,
            (
                self.type == PROMETHEUS and not c.address,
                ("config", "address"),
                "prometheus analysis provider requires the address",
            ),
            (
                datadog and not c.api_key_file and not c.api_key_data,
                "config",
                "either datadog APIKeyFile or APIKeyData must be set",
            ),
            (
                datadog and not c.application_key_file and not c.application_key_data,
                "config",
                "either datadog ApplicationKeyFile or ApplicationKeyData must be set",
            ),
            (
                datadog and c.api_key_file and c.api_key_data,
                "config",
                "only datadog APIKeyFile or APIKeyData can be set",
            ),
            (
                datadog and c.application_key_file and c.application_key_data,
                "config",
                "only datadog ApplicationKeyFile or ApplicationKeyData can be set",
            ),
        )
        return self

    @property
    def address(self) -> str:
        """Returns the address of the provider; Datadog has a default site."""
        return self.config.address or (DATADOG_SITE if self.type == DATADOG else "")


class AnalysisSettings(Spec):
    """The `config` of the analysis plugin in a piped file."""

    analysis_providers: tuple[AnalysisProvider, ...] = ()


class AnalysisApplication(Spec):
    """The section `plugins.analysis` of an application: arguments for every query."""

    app_custom_args: Mapping[str, str] = Field(default_factory=dict[str, str])


class AnalysisOptions(Spec):
    """ANALYSIS: the checks and the duration."""

    duration: Duration = Field(default=Duration(0), validate_default=True)
    restart_threshold: int = 0
    metrics: tuple[MetricCheck, ...] = ()
    logs: tuple[LogCheck, ...] = ()
    https: tuple[HttpCheck, ...] = ()

    @field_validator("duration")
    @classmethod
    def _is_positive(cls, value: Duration) -> Duration:
        if value == 0:
            raise ValueError("the ANALYSIS stage requires duration field")
        if value < 0:
            raise ValueError("must be longer than 0s")
        return value


class V0AnalysisOptions(AnalysisOptions):
    """ANALYSIS of the first generation, with `skipOn` among its options."""

    skip_on: SkipOn = SkipOn()


class AnalysisTemplate(Spec):
    """The `spec` of the kind AnalysisTemplate: named checks that stages refer to."""

    metrics: Mapping[str, MetricCheck] = Field(default_factory=dict[str, MetricCheck])
    logs: Mapping[str, LogCheck] = Field(default_factory=dict[str, LogCheck])
    https: Mapping[str, HttpCheck] = Field(default_factory=dict[str, HttpCheck])


CONFIG = PluginConfig(
    name="analysis",
    application=AnalysisApplication,
    stages={"ANALYSIS": AnalysisOptions},
    piped=AnalysisSettings,
    kinds={TEMPLATE_KIND: AnalysisTemplate},
    v0_stages={"ANALYSIS": V0Stage(V0AnalysisOptions)},
)


CheckT = TypeVar("CheckT", bound=Check)


def needs_templates(options: AnalysisOptions) -> bool:
    """Reports whether a check of the stage refers to a template."""
    return any(c.template.name for c in (*options.metrics, *options.logs, *options.https))


def with_templates(options: AnalysisOptions, templates: AnalysisTemplate) -> AnalysisOptions:
    """Returns the options with templates in place of references; query arguments stay."""
    return options.model_copy(
        update={
            "metrics": tuple(_resolve(check, templates.metrics) for check in options.metrics),
            "logs": tuple(_resolve(check, templates.logs) for check in options.logs),
            "https": tuple(_resolve(check, templates.https) for check in options.https),
        }
    )


def _resolve(check: CheckT, templates: Mapping[str, CheckT]) -> CheckT:
    name = check.template.name
    if not name:
        return check
    if name not in templates:
        names = ", ".join(sorted(templates)) or "none"
        raise UserMistake(
            f"analysis template {name} not found despite template specified",
            hint=f"add it to a file of kind AnalysisTemplate under .pipe/; defined there: {names}",
        )
    template = templates[name]
    if template.template.name:
        raise UserMistake(f"analysis template {name} names a template itself, write its check")
    return template.model_copy(update={"template": check.template})
