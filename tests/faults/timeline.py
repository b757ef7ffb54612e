# SPDX-License-Identifier: Apache-2.0
"""The history of a trial as a timeline, as text and as one HTML file without anything from elsewhere."""

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path

from faults.history import Record
from faults.truth import TruthLine

_MARKS = {
    "fault": "✗", "fault-end": "·", "operation": "→", "status": "○", "target": "■",
    "violation": "‼", "harness": "-",
}  # fmt: skip
_STYLE = """
body{font:14px/1.4 system-ui,sans-serif;margin:2rem;color:#1b1f24;background:#fff}
table{border-collapse:collapse;width:100%}td,th{padding:.15rem .6rem;text-align:left;vertical-align:top}
th{position:sticky;top:0;background:#fff}td:first-child{font-variant-numeric:tabular-nums;white-space:nowrap}
tr.fault{background:#fde8d7}tr.violation{background:#f9c6c6;font-weight:600}tr.operation{background:#e8f0fb}
tr.target{background:#eaf5ea}tr.fault-end,tr.harness{color:#666}pre{white-space:pre-wrap;margin:0}
@media(prefers-color-scheme:dark){body,th{background:#15181c;color:#e3e6ea}tr.fault{background:#4a2f17}
tr.violation{background:#6b2323}tr.operation{background:#1d2c44}tr.target{background:#1c3320}}
"""


def merged(records: Sequence[Record], truth: Sequence[TruthLine]) -> list[Record]:
    """What was recorded and what the targets wrote, by time."""
    lines = [
        Record(
            line.at,
            line.application,
            f"{line.what} {line.label} of {line.deployment[:8]}",
            "target",
        )
        for line in truth
    ]
    return sorted([*records, *lines], key=lambda record: record.at)


def as_text(records: Sequence[Record]) -> str:
    """One line per record, with the seconds since the first one."""
    first = records[0].at if records else 0.0
    return "".join(
        f"{record.at - first:8.2f} {_MARKS.get(record.kind, ' ')} {record.lane:<12} "
        f"{record.text.splitlines()[0] if record.text else ''}\n"
        for record in records
    )


def as_html(records: Sequence[Record], title: str) -> str:
    """A page with a row per record, coloured by its kind."""
    first = records[0].at if records else 0.0
    rows = "".join(
        f'<tr class="{escape(r.kind)}"><td>{r.at - first:.2f}</td><td>{escape(r.kind)}</td>'
        f"<td>{escape(r.lane)}</td><td><pre>{escape(r.text)}</pre></td></tr>\n"
        for r in records
    )
    began = datetime.fromtimestamp(first, UTC).isoformat(timespec="seconds")
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style><h1>{escape(title)}</h1><p>Began {began}. Seconds since then; marked are "
        "faults, operations of users, statuses, what the targets wrote, and violations.</p>"
        f"<table><tr><th>Seconds</th><th>Kind</th><th>Where</th><th>What</th></tr>\n{rows}</table></html>\n"
    )


def write(directory: Path, name: str, records: Sequence[Record], title: str) -> tuple[Path, Path]:
    """Writes both forms; returns their files."""
    text, page = directory / f"{name}.txt", directory / f"{name}.html"
    text.write_text(as_text(records))
    page.write_text(as_html(records, title))
    return text, page
