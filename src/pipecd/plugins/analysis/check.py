# SPDX-License-Identifier: Apache-2.0
"""What a stage or a template measures."""

from collections.abc import Iterator, Mapping
from typing import ClassVar, Self

from pydantic import Field, model_validator

from pipecd.sdk.config import Duration, Reference, Spec, refuse

TEMPLATE_KIND = "AnalysisTemplate"
DEVIATIONS = ("EITHER", "HIGH", "LOW")


class TemplateReference(Spec):
    """A check kept under `.pipe/`, with arguments for its query."""

    name: str = ""
    app_args: Mapping[str, str] = Field(default_factory=dict[str, str])


class ExpectedRange(Spec):
    """The inclusive range of good values."""

    min: float | None = None
    max: float | None = None


class Check(Spec):
    """What all checks have; a check is repeated every `interval`."""

    section: ClassVar[str]
    """Where such checks stand in a stage and in a template."""

    interval: Duration = Duration(0)
    failure_limit: int = 0
    skip_on_no_data: bool = False
    timeout: Duration = Duration(30)
    template: TemplateReference = TemplateReference()

    @property
    def _stands_alone(self) -> bool:
        return not self.template.name

    @model_validator(mode="after")
    def _has_a_period(self) -> Self:
        refuse(
            self,
            # Upstream checks this for metrics only and crashes on the others.
            (
                self._stands_alone and self.interval == 0,
                "interval",
                'missing "interval" field',
            ),
            (self.interval < 0, "interval", "must be longer than 0s"),
        )
        return self

    def references(self) -> Iterator[Reference]:
        """Yield the template that takes the place of the check."""
        if self.template.name:
            yield Reference(("template", "name"), TEMPLATE_KIND, self.section, self.template.name)


class MetricCheck(Check):
    """A query whose answer must be in a range, or like that of another variant."""

    section = "metrics"
    strategy: str = "THRESHOLD"
    provider: str = ""
    query: str = ""
    expected: ExpectedRange = ExpectedRange()
    deviation: str = "EITHER"
    canary_args: Mapping[str, str] = Field(default_factory=dict[str, str])
    baseline_args: Mapping[str, str] = Field(default_factory=dict[str, str])
    primary_args: Mapping[str, str] = Field(default_factory=dict[str, str])

    @model_validator(mode="after")
    def _complete(self) -> Self:
        alone = self._stands_alone
        refuse(
            self,
            (alone and not self.provider, "provider", 'missing "provider" field'),
            (alone and not self.query, "query", 'missing "query" field'),
            (
                alone and self.deviation not in DEVIATIONS,
                "deviation",
                '"deviation" have to be one of EITHER, HIGH or LOW',
            ),
        )
        return self


class LogCheck(Check):
    """A search in logs that must find nothing unexpected."""

    section = "logs"
    provider: str = ""
    query: str = ""


class HttpHeader(Spec):
    """One header of a request."""

    key: str = ""
    value: str = ""


class HttpCheck(Check):
    """A request whose answer must carry the expected code; without a method it is GET."""

    section = "https"
    url: str = ""
    method: str = ""
    headers: tuple[HttpHeader, ...] = ()
    expected_code: int = 0
    expected_response: str = ""
