# SPDX-License-Identifier: Apache-2.0
"""Fills in the arguments of a query, which is a template of Go."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pipecd.sdk import UserMistake, render_template

# Of older files, whose `{{ .K8s.Namespace }}` is kept as an argument of this name.
_NAMESPACE = "k8sNamespace"


@dataclass(frozen=True)
class QueryArguments:
    """What is the same in all queries of a check."""

    application: str
    custom: Mapping[str, str] = field(default_factory=dict[str, str])


def fill_in(
    query: str, variant: str, variant_arguments: Mapping[str, str], arguments: QueryArguments
) -> str:
    """The query for one variant, `primary`, `canary` or `baseline`."""
    own, shared = (
        _Given("VariantCustomArgs", variant_arguments),
        _Given("AppCustomArgs", arguments.custom),
    )
    data = {
        "App": {"Name": arguments.application, "Env": ""},
        "K8s": {"Namespace": arguments.custom.get(_NAMESPACE, "")},
        "Variant": {"Name": variant},
        own.name: own,
        shared.name: shared,
    }
    text = render_template(query, data, name="query")
    # Upstream asks for "<no value>", which no series has, and takes the silence for a success.
    if "<no value>" in text and (missing := own.missing + shared.missing):
        raise UserMistake(
            f"the query for {variant} has no value for {', '.join(missing)}",
            hint="add it to appArgs of the template, to appCustomArgs of the application, or to "
            f"{variant}Args of the check",
        )
    return text


class _Given(dict[str, Any]):
    """Arguments of which some may be left out, as long as the query does not print them."""

    def __init__(self, name: str, given: Mapping[str, str]) -> None:
        super().__init__(given)
        self.name = name
        self.missing: list[str] = []

    def __contains__(self, key: object) -> bool:
        return True

    def __missing__(self, key: str) -> None:
        self.missing.append(f".{self.name}.{key}")
