# SPDX-License-Identifier: Apache-2.0
"""Draws measurements over the size of an installation as SVG pictures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 320, 64, 24, 48, 64
COLOURS = ("#1f6feb", "#bf5700", "#1a7f37", "#8250df", "#6e7781")
TICKS = 4

Line = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Curve:
    """Lines over sizes; a target is drawn as a dashed line."""

    name: str
    title: str
    x_label: str
    y_label: str
    lines: Mapping[str, Line]
    targets: Mapping[str, float] = field(default_factory=dict[str, float])


def draw(curve: Curve) -> str:
    """Returns the picture."""
    points = [point for line in curve.lines.values() for point in line]
    x_max = max(x for x, _ in points) or 1.0
    y_max = _rounded_up(max([y for _, y in points] + list(curve.targets.values())) or 1.0)

    def at(x: float, y: float) -> tuple[float, float]:
        return (
            LEFT + (WIDTH - LEFT - RIGHT) * x / x_max,
            HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * y / y_max,
        )

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" role="img" font-family="sans-serif" font-size="12">',
        f"<title>{escape(curve.title)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        _text(LEFT, 20, curve.title, size=14),
        _text(LEFT, HEIGHT - 10, f"{curve.x_label} → {curve.y_label}", colour="#57606a"),
    ]
    for tick in range(TICKS + 1):
        value = y_max * tick / TICKS
        x, y = at(0, value)
        parts.append(
            f'<line x1="{x}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#d0d7de"/>'
        )
        parts.append(_text(x - 6, y + 4, f"{value:g}", anchor="end"))
    for x_value in sorted({x for x, _ in points}):
        x, y = at(x_value, 0)
        parts.append(_text(x, y + 16, f"{x_value:,.0f}", anchor="middle"))
    for value in curve.targets.values():
        (x, y), (end, _) = at(0, value), at(x_max, value)
        parts.append(
            f'<line x1="{x}" y1="{y:.1f}" x2="{end}" y2="{y:.1f}" stroke="#cf222e" '
            'stroke-dasharray="6 4"/>'
        )
    for (name, line), colour in zip(curve.lines.items(), COLOURS, strict=False):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*point) for point in line))
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2">'
            f"<title>{escape(name)}</title></polyline>"
        )
        for point in line:
            x, y = at(*point)
            parts.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}">'
                f"<title>{escape(name)}: {point[1]:g}</title></circle>"
            )
    parts += _legend(curve)
    return "\n".join([*parts, "</svg>", ""])


def _legend(curve: Curve) -> list[str]:
    entries = [*zip(curve.lines, COLOURS, strict=False)]
    entries += [(f"target: {name}", "#cf222e") for name in curve.targets]
    x, parts = float(LEFT), list[str]()
    for name, colour in entries:
        y = HEIGHT - 30
        parts.append(f'<rect x="{x}" y="{y - 9}" width="10" height="10" fill="{colour}"/>')
        parts.append(_text(x + 14, y, name))
        x += 28 + 6.6 * len(name)
    return parts


def _text(
    x: float, y: float, text: str, *, size: int = 12, anchor: str = "start", colour: str = "#24292f"
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" '
        f'fill="{colour}">{escape(text)}</text>'
    )


def _rounded_up(value: float) -> float:
    """Returns the next number of the form 1, 2, 4, 5 or 8 times a power of ten."""
    power = 1.0
    while power * 10 <= value:
        power *= 10
    while power > value:
        power /= 10
    return next(step * power for step in (1, 2, 4, 5, 8, 10) if step * power >= value)
