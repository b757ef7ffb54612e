# SPDX-License-Identifier: Apache-2.0
"""How the traffic is divided among variants; a Service can only lead all of it to one."""

from dataclasses import dataclass

from pipecd.plugins.kubernetes.application import Variant, VariantLabel
from pipecd.plugins.kubernetes.manifest.body import text_at, with_entries
from pipecd.plugins.kubernetes.manifest.manifest import Manifest
from pipecd.sdk import UserMistake

ALL = 100


@dataclass(frozen=True)
class Shares:
    """How much of the traffic each variant gets, in percent."""

    primary: int
    canary: int = 0
    baseline: int = 0

    @property
    def by_variant(self) -> tuple[tuple[Variant, int], ...]:
        """The share of each variant by its name."""
        return ("primary", self.primary), ("canary", self.canary), ("baseline", self.baseline)

    def __str__(self) -> str:
        """The shares as people read them."""
        return ", ".join(f"{name.capitalize()}: {share}%" for name, share in self.by_variant)

    def within(self, total: int) -> "Shares":
        """Returns the shares of a part of the traffic; what is left over goes to primary."""
        canary, baseline = (share * total // ALL for share in (self.canary, self.baseline))
        return Shares(total - canary - baseline, canary, baseline)


def check(shares: Shares) -> None:
    """Refuses shares that are not the whole traffic."""
    if min(shares.primary, shares.canary, shares.baseline) < 0 or (
        shares.primary + shares.canary + shares.baseline != ALL
    ):
        raise UserMistake(
            f"primary {shares.primary}%, canary {shares.canary}% and baseline {shares.baseline}% "
            "are not the whole traffic",
            hint="the three must add up to 100",
        )


def by_selector(service: Manifest, shares: Shares, label: VariantLabel) -> Manifest:
    """Returns the Service with all of its traffic on one variant."""
    selected = text_at(service.body, "spec", "selector", label.key)
    if selected != label.primary_value:
        raise UserMistake(
            f"{service.key} must select {label.key}: {label.primary_value} in Git",
            hint="add it to spec.selector, so that the traffic can be moved and moved back",
        )
    if shares == Shares(ALL):
        return service
    if shares != Shares(0, ALL):
        raise UserMistake(
            "a Service can lead all of its traffic to primary or all of it to canary",
            hint="write primary: 100 or canary: 100, or divide the traffic by istio or gateway",
        )
    return service.with_body(
        with_entries(service.body, ("spec", "selector"), {label.key: label.canary_value})
    )
