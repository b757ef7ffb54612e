# SPDX-License-Identifier: Apache-2.0
"""Puts the checks that the repository shares under `.pipe/` in the place of their names."""

from collections.abc import Mapping
from typing import TypeVar

from pipecd.plugins.analysis.check import Check
from pipecd.plugins.analysis.config import AnalysisOptions, AnalysisTemplate
from pipecd.sdk import UserMistake

CheckT = TypeVar("CheckT", bound=Check)


def needs_templates(options: AnalysisOptions) -> bool:
    """Say whether any check of the stage is kept elsewhere."""
    return any(c.template.name for c in (*options.metrics, *options.logs, *options.https))


def with_templates(options: AnalysisOptions, templates: AnalysisTemplate) -> AnalysisOptions:
    """The same stage with every check in full; arguments for queries stay those of the stage."""
    return options.model_copy(
        update={
            "metrics": tuple(_found(check, templates.metrics) for check in options.metrics),
            "logs": tuple(_found(check, templates.logs) for check in options.logs),
            "https": tuple(_found(check, templates.https) for check in options.https),
        }
    )


def _found(check: CheckT, templates: Mapping[str, CheckT]) -> CheckT:
    name = check.template.name
    if not name:
        return check
    if name not in templates:
        known = ", ".join(sorted(templates)) or "none"
        raise UserMistake(
            f"analysis template {name} not found despite template specified",
            hint=f"add it to a file of kind AnalysisTemplate under .pipe/; known there: {known}",
        )
    found = templates[name]
    if found.template.name:
        raise UserMistake(f"analysis template {name} names a template itself, write its check")
    return found.model_copy(update={"template": check.template})
