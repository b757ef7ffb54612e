# SPDX-License-Identifier: Apache-2.0
"""The traffic of a function: an alias distributes it between at most two versions.

Stored traffic has the form of upstream, so that either piped restores what the other one stored.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipecd.sdk import UserMistake
from pipecd.sdk.unstructured import at, map_at, text_at

ALIAS = "Service"


@dataclass(frozen=True)
class Traffic:
    """The version of the alias with its percentage; the secondary version gets the rest."""

    primary: str
    percent: float = 100.0
    secondary: str = ""

    @classmethod
    def of_alias(cls, alias: Mapping[str, Any]) -> "Traffic":
        """Reads an alias of AWS."""
        primary = text_at(alias, "FunctionVersion")
        weights = map_at(alias, "RoutingConfig", "AdditionalVersionWeights")
        for version, weight in weights.items():
            if weight:
                return cls(primary, round(100 - float(weight) * 100, 2), version)
        return cls(primary)

    @classmethod
    def decode(cls, text: str) -> "Traffic":
        """Reads stored traffic."""
        try:
            stored = json.loads(text)
            primary, secondary = (map_at(stored, key) for key in ("primary", "secondary"))
            found = cls(
                primary["version"],
                float(primary["percent"]),
                text_at(secondary, "version") if at(secondary, "percent") else "",
            )
        except (ValueError, KeyError, TypeError) as e:
            raise UserMistake(f"the stored traffic cannot be read: {text}") from e
        return found

    def encode(self) -> str:
        """Returns the form that is stored."""
        stored = {"primary": {"version": self.primary, "percent": self.percent}}
        if self.secondary:
            rest = round(100 - self.percent, 2)
            stored["secondary"] = {"version": self.secondary, "percent": rest}
        return json.dumps(stored)

    def parameters(self) -> dict[str, Any]:
        """Returns the parameters of an alias; without weights old ones would stay."""
        weights = {self.secondary: round(1 - self.percent / 100, 4)} if self.secondary else {}
        return {
            "FunctionVersion": self.primary,
            "RoutingConfig": {"AdditionalVersionWeights": weights},
        }

    def shifted(self, version: str, percent: int, *, original: str = "") -> "Traffic":
        """Returns traffic with a share for a version; the version that served gets the rest.

        `original` is the version before the deployment, needed if all traffic was shifted already.
        """
        old = self.secondary if self.primary == version else self.primary
        old = old or original
        if percent == 100 or old in ("", version):
            return Traffic(version)
        return Traffic(version, float(percent), old) if percent else Traffic(old)

    def __str__(self) -> str:
        shares = [f"version {self.primary} {self.percent:g}%"]
        if self.secondary:
            shares.append(f"version {self.secondary} {100 - self.percent:g}%")
        return ", ".join(shares)
