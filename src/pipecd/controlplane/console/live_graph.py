# SPDX-License-Identifier: Apache-2.0
"""The tree of live resources as a graph: positions of boxes and edges for an SVG.

The tree grows from left to right, a parent is beside its first child, which is the worst, and equal
leaves are one box with their number. The same tree always gives the same picture.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from pipecd.controlplane.console.live_state_view import ResourceRow
from pipecd.controlplane.console.status_badge import Badge, health_badge
from pipecd.model.health import HealthStatus

WIDTH, HEIGHT = 256, 52
_GAP_X, _GAP_Y, _MARGIN = 56, 12, 16
# How many equal leaves are shown as boxes of their own.
_MAX_EQUAL = 4
MAX_BOXES = 200
_MAX_LETTERS, _MAX_MARKED_LETTERS = 25, 21
# The kind is in smaller letters than the name.
_MAX_KIND_LETTERS = 34
# Beside the mark of a resource that differs from Git.
_MAX_MARKED_KIND_LETTERS = 29
_TAIL = 9
_TIMES = "\N{MULTIPLICATION SIGN}"


@dataclass(frozen=True)
class GraphBox:
    """A resource, or a number of equal ones if `id` is empty; `anchor` is its id on the page."""

    x: int
    y: int
    id: str
    anchor: str
    title: str
    label: str
    kind: str
    badge: Badge
    health: HealthStatus
    is_match: bool = True
    has_drift: bool = False


@dataclass(frozen=True)
class LiveGraph:
    """The boxes, the paths of the edges and the size of the picture."""

    boxes: tuple[GraphBox, ...]
    edges: tuple[str, ...]
    width: int
    height: int
    omitted: int = 0
    box_width: int = WIDTH
    box_height: int = HEIGHT


@dataclass
class _Layout:
    boxes: list[GraphBox] = field(default_factory=list[GraphBox])
    edges: list[str] = field(default_factory=list[str])
    next_y: int = _MARGIN
    omitted: int = 0

    def place(self, row: ResourceRow, depth: int) -> int | None:
        """Places a resource and all below it; returns where its middle is, None if omitted."""
        if len(self.boxes) >= MAX_BOXES:
            self.omitted += 1 + row.below
            return None
        # The box is inserted before its children, which is the order of the keyboard.
        index = len(self.boxes)
        self.boxes.append(_box(row, 0, 0))
        middles = self.place_all(row.children, depth + 1)
        # The picture begins in its corner, also where only a part of it fits.
        y = middles[0] - HEIGHT // 2 if middles else self._next()
        x = _x(depth)
        self.boxes[index] = _box(row, x, y)
        middle = y + HEIGHT // 2
        self.edges += (_edge(x + WIDTH, middle, child) for child in middles)
        return middle

    def place_all(self, rows: Sequence[ResourceRow], depth: int) -> list[int]:
        """Places resources and all below them; returns where the middles of their boxes are."""
        equal: defaultdict[tuple[str, HealthStatus], list[ResourceRow]] = defaultdict(list)
        for row in rows:
            if not row.children and row.is_match and row.drift is None:
                equal[row.kind, row.health].append(row)
        groups = [leaves for leaves in equal.values() if len(leaves) > _MAX_EQUAL]
        group_of = {row.id: group for group in groups for row in group}
        middles: list[int] = []
        for row in rows:
            group = group_of.get(row.id)
            if group is None:
                middle = self.place(row, depth)
                middles += [] if middle is None else [middle]
            elif row is group[0]:
                y = self._next()
                self.boxes.append(_group_box(group, _x(depth), y))
                middles.append(y + HEIGHT // 2)
        return middles

    def _next(self) -> int:
        y = self.next_y
        self.next_y += HEIGHT + _GAP_Y
        return y


def live_graph(roots: Sequence[ResourceRow]) -> LiveGraph:
    """The picture of a tree."""
    layout = _Layout()
    layout.place_all(roots, 0)
    right = max((box.x + WIDTH for box in layout.boxes), default=0)
    return LiveGraph(
        boxes=tuple(layout.boxes),
        edges=tuple(layout.edges),
        width=right + _MARGIN,
        height=layout.next_y - _GAP_Y + _MARGIN,
        omitted=layout.omitted,
    )


def _x(depth: int) -> int:
    return _MARGIN + depth * (WIDTH + _GAP_X)


def _edge(x: int, y: int, child_y: int) -> str:
    """The path from the right side of a parent to the left side of a child."""
    middle = x + _GAP_X // 2
    return f"M{x} {y}C{middle} {y} {middle} {child_y} {x + _GAP_X} {child_y}"


def _box(row: ResourceRow, x: int, y: int) -> GraphBox:
    details = f": {row.text}" if row.text else ""
    drift = "" if row.drift is None else ", differs from Git"
    kind = f"{row.kind} · {row.location}" if row.location else row.kind
    return GraphBox(
        x=x,
        y=y,
        id=row.id,
        anchor=f"box-{row.anchor}",
        title=f"{row.kind} {row.name}, {row.badge.text.lower()}{drift}{details}",
        label=shortened(row.name, _MAX_LETTERS if row.drift is None else _MAX_MARKED_LETTERS),
        kind=shortened(kind, _MAX_KIND_LETTERS if row.drift is None else _MAX_MARKED_KIND_LETTERS),
        badge=row.badge,
        health=row.health,
        is_match=row.is_match,
        has_drift=row.drift is not None,
    )


def _group_box(rows: Sequence[ResourceRow], x: int, y: int) -> GraphBox:
    first, badge = rows[0], health_badge(rows[0].health)
    label = f"{len(rows)} {_TIMES} {first.kind}"
    return GraphBox(
        x=x,
        y=y,
        id="",
        anchor=f"boxes-{first.anchor}",
        title=f"{label}, {badge.text.lower()}; open the list",
        label=label,
        kind=first.kind,
        badge=badge,
        health=first.health,
    )


def shortened(text: str, letters: int = _MAX_LETTERS) -> str:
    """The text without its middle if it is long: the end tells pods of one replica set apart."""
    if len(text) <= letters:
        return text
    return f"{text[: letters - _TAIL - 1]}…{text[-_TAIL:]}"
