# SPDX-License-Identifier: Apache-2.0
"""Memory, threads and open files of programs over time, as figures and as pictures."""

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path

from faults.evidence import Resources

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 720, 320, 64, 24, 44, 60
_COLOURS = ("#1f6feb", "#bf5700", "#1a7f37", "#8250df", "#6e7781")
_TICKS = 4
_MEGABYTE = 1 << 20

Line = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Sample:
    """What one program used at a time, in seconds since the begin."""

    at: float
    program: str
    used: Resources


@dataclass
class ResourceSeries:
    """Samples of all programs, taken again and again."""

    read: Callable[[], Mapping[str, Resources]]
    interval: float = 5.0
    samples: list[Sample] = field(default_factory=list[Sample])

    async def run(self) -> None:
        began = time.monotonic()
        while True:
            at = round(time.monotonic() - began, 1)
            self.samples += [Sample(at, name, used) for name, used in self.read().items()]
            await asyncio.sleep(self.interval)

    def save(self, directory: Path, name: str) -> list[Path]:
        """Writes the samples as JSON and a picture of each resource; returns the files."""
        directory.mkdir(parents=True, exist_ok=True)
        figures = directory / f"{name}.json"
        figures.write_text(json.dumps([asdict(sample) for sample in self.samples]))
        written = [figures]
        for what, unit in {"memory": "MB", "threads": "threads", "files": "open files"}.items():
            picture = directory / f"{name}-{what}.svg"
            picture.write_text(draw(f"{what.capitalize()} of each program", unit, self.lines(what)))
            written.append(picture)
        return written

    def lines(self, what: str) -> dict[str, Line]:
        """One line per program, over minutes."""
        lines: dict[str, list[tuple[float, float]]] = {}
        for sample in self.samples:
            value = float(getattr(sample.used, what))
            point = (sample.at / 60, value / _MEGABYTE if what == "memory" else value)
            lines.setdefault(sample.program, []).append(point)
        return {name: lines[name] for name in sorted(lines)}

    def growth(self, what: str) -> dict[str, tuple[float, float]]:
        """The medians of the second and of the last quarter of the time, by program.

        In the first quarter caches fill.
        """
        medians: dict[str, tuple[float, float]] = {}
        for name, line in self.lines(what).items():
            quarter = len(line) // 4
            if quarter:
                medians[name] = _median(line[quarter : 2 * quarter]), _median(line[-quarter:])
        return medians


def _median(line: Line) -> float:
    values = sorted(value for _, value in line)
    return values[len(values) // 2]


def draw(title: str, unit: str, lines: Mapping[str, Line]) -> str:
    """A picture of lines over minutes, as SVG."""
    points = [point for line in lines.values() for point in line] or [(0.0, 0.0)]
    x_max = max(x for x, _ in points) or 1.0
    y_max = (max(y for _, y in points) or 1.0) * 1.1

    def at(x: float, y: float) -> tuple[float, float]:
        across, down = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
        return _LEFT + across * x / x_max, _HEIGHT - _BOTTOM - down * y / y_max

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        f'height="{_HEIGHT}" role="img" font-family="sans-serif" font-size="12" fill="#24292f">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="20" font-size="14">{escape(title)}</text>',
        f'<text x="{_LEFT}" y="{_HEIGHT - 8}" fill="#57606a">minutes → {escape(unit)}</text>',
    ]
    for tick in range(_TICKS + 1):
        (x, y), value = at(0, y_max * tick / _TICKS), y_max * tick / _TICKS
        minute = x_max * tick / _TICKS
        parts += [
            f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{_WIDTH - _RIGHT}" y2="{y:.1f}" stroke="#d0d7de"/>',
            f'<text x="{x - 6:.1f}" y="{y + 4:.1f}" text-anchor="end">{value:.0f}</text>',
            f'<text x="{at(minute, 0)[0]:.1f}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle">'
            f"{minute:.0f}</text>",
        ]
    for number, (name, line) in enumerate(lines.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*point) for point in line))
        label = _LEFT + number * 130
        parts += [
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>',
            f'<rect x="{label}" y="{_HEIGHT - 37}" width="10" height="10" fill="{colour}"/>',
            f'<text x="{label + 14}" y="{_HEIGHT - 28}">{escape(name)}</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])
