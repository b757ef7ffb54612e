# SPDX-License-Identifier: Apache-2.0
"""The four cards above the charts of insights: how large the project is, and its last day."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pipecd.controlplane.console.application_summary import ApplicationSummary
from pipecd.controlplane.console.status_badge import Tone, piped_state
from pipecd.controlplane.insight.series import Ratio
from pipecd.proto.model.piped_pb2 import Piped

_MAX_PIPEDS = 3


@dataclass(frozen=True)
class Share:
    """A part of a card's whole, in percent, with the text for it."""

    text: str
    percent: float
    tone: Tone
    href: str = ""
    # Shown beside the text if it is not part of it.
    count: str = ""


@dataclass(frozen=True)
class SummaryCard:
    """A number, what it counts, and its parts, of which `omitted` are not shown."""

    key: str
    title: str
    value: str
    note: str
    shares: tuple[Share, ...] = ()
    omitted: int = 0


def summary_cards(
    applications: Sequence[ApplicationSummary] | None,
    pipeds: Sequence[Piped] | None,
    last_day: Ratio,
) -> tuple[SummaryCard, ...]:
    """The cards of upstream's console; None for lists that the user may not see.

    `last_day` has the failed deployments out of all.
    """
    cards: list[SummaryCard] = []
    if applications is not None:
        cards += (_applications(applications), _by_piped(applications, pipeds or ()))
    if pipeds is not None:
        cards.append(_pipeds(pipeds))
    return (*cards, _last_day(last_day))


def _applications(applications: Sequence[ApplicationSummary]) -> SummaryCard:
    disabled = sum(each.disabled for each in applications)
    enabled = len(applications) - disabled
    return SummaryCard(
        "applications",
        "Applications",
        f"{len(applications):,}",
        "" if disabled or not enabled else "all enabled",
        _shares(
            len(applications),
            ("enabled", enabled, Tone.OK, "/applications?activeStatus=enabled"),
            ("disabled", disabled, Tone.OFF, "/applications?activeStatus=disabled"),
        ),
    )


def _by_piped(applications: Sequence[ApplicationSummary], pipeds: Sequence[Piped]) -> SummaryCard:
    """The pipeds with most applications."""
    names = {piped.id: piped.name for piped in pipeds}
    counts = Counter(each.piped_id for each in applications).most_common()
    return SummaryCard(
        "by-piped",
        "Applications by piped",
        f"{len(counts):,}",
        f"{'piped has' if len(counts) == 1 else 'pipeds have'} applications",
        tuple(
            Share(
                names.get(id, id[:8]),
                100 * count / len(applications),
                Tone.RUN,
                f"/applications?pipedId={id}",
                f"{count:,}",
            )
            for id, count in counts[:_MAX_PIPEDS]
        ),
        omitted=max(len(counts) - _MAX_PIPEDS, 0),
    )


def _pipeds(pipeds: Sequence[Piped]) -> SummaryCard:
    states = Counter(map(piped_state, pipeds))
    online, disabled = states["online"], states["disabled"]
    enabled = len(pipeds) - disabled
    return SummaryCard(
        "pipeds",
        "Pipeds",
        f"{online:,} of {enabled:,}",
        f"online, {disabled:,} disabled" if disabled else "online",
        _shares(
            enabled,
            ("online", online, Tone.OK, "/settings/piped?status=online"),
            ("offline", states["offline"], Tone.BAD, "/settings/piped?status=offline"),
            (
                "not started yet",
                states["not-started"],
                Tone.OFF,
                "/settings/piped?status=not-started",
            ),
        ),
    )


def _last_day(failures: Ratio) -> SummaryCard:
    completed, failed = failures.whole, int(failures.part)
    rate = f", {100 * failures.value:.0f} % failed" if completed else ""
    return SummaryCard(
        "last-day",
        "Last 24 hours",
        f"{completed:,}",
        f"completed{rate}",
        _shares(
            completed,
            ("succeeded or cancelled", completed - failed, Tone.OFF, ""),
            ("failed", failed, Tone.BAD, "/deployments?status=5&since=24h"),
        ),
    )


def _shares(whole: int, *parts: tuple[str, int, Tone, str]) -> tuple[Share, ...]:
    """The parts of a whole that are not empty."""
    return tuple(
        Share(f"{count:,} {text}", 100 * count / whole, tone, href)
        for text, count, tone, href in parts
        if count
    )
