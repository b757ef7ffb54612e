# SPDX-License-Identifier: Apache-2.0
"""The Go templates of queries, and their arguments."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pipecd.sdk import UserMistake, render_template

# The argument that replaces `{{ .K8s.Namespace }}` of first-generation queries.
_NAMESPACE = "k8sNamespace"


@dataclass(frozen=True)
class QueryArguments:
    """The arguments that all queries of a check share."""

    application: str
    custom: Mapping[str, str] = field(default_factory=dict[str, str])


class _TemplateArguments(dict[str, Any]):
    """Arguments of a query; a missing one is an error only if the query prints it."""

    def __init__(self, name: str, arguments: Mapping[str, str]) -> None:
        super().__init__(arguments)
        self.name = name
        self.missing: list[str] = []

    def __contains__(self, key: object) -> bool:
        return True

    def __missing__(self, key: str) -> None:
        self.missing.append(f".{self.name}.{key}")


def render_query(
    query: str,
    variant: str,
    variant_arguments: Mapping[str, str],
    application: str,
    custom: Mapping[str, str],
) -> str:
    """Renders the Go template of a query for `primary`, `canary` or `baseline`.

    It runs in a worker, so its arguments are plain values.
    """
    of_variant = _TemplateArguments("VariantCustomArgs", variant_arguments)
    of_application = _TemplateArguments("AppCustomArgs", custom)
    data = {
        "App": {"Name": application, "Env": ""},
        "K8s": {"Namespace": custom.get(_NAMESPACE, "")},
        "Variant": {"Name": variant},
        of_variant.name: of_variant,
        of_application.name: of_application,
    }
    text = render_template(query, data, name="query")
    # Upstream queries "<no value>", which no series has, and takes the empty result for a success.
    if "<no value>" in text and (missing := of_variant.missing + of_application.missing):
        raise UserMistake(
            f"the query for {variant} has no value for {', '.join(missing)}",
            hint="add it to appArgs of the template, to appCustomArgs of the application, or to "
            f"{variant}Args of the check",
        )
    return text
