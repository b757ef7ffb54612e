# SPDX-License-Identifier: Apache-2.0
"""The tree of live resources as a graph: positions of boxes and edges for an SVG.

The tree grows from left to right, a parent is beside its first child, which is the worst, and equal
leaves are one box with their number. The same tree always gives the same picture. A second picture
for narrow windows grows downwards: it is as wide as a phone, and each box is below its parent.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from pipecd.controlplane.console.live_state_view import ResourceRow
from pipecd.controlplane.console.status_badge import Badge, Tone, health_badge
from pipecd.model.health import HealthStatus

WIDTH, HEIGHT = 256, 52
_GAP_X, _GAP_Y, _MARGIN = 56, 12, 16
# A phone of 360 pixels without the margins of the page.
NARROW_WIDTH = 334
_NARROW_MARGIN, _NARROW_GAP, _INDENT = 8, 8, 20
# Farther in, a box would have no room for its name.
_MAX_INDENTS = 5
# How many equal leaves are shown as boxes of their own.
_MAX_EQUAL = 4
MAX_BOXES = 200
# Beside the icon, and beside the mark of a resource that differs from Git.
_ICON, _MARK = 48, 30
_LETTER = 8.3
# The kind is in smaller letters than the name.
_KIND_LETTER = 6.1
_TAIL = 9
_TIMES = "\N{MULTIPLICATION SIGN}"


@dataclass(frozen=True)
class GraphBox:
    """A resource, or a number of equal ones if `id` is empty; `anchor` is its id on the page."""

    x: int
    y: int
    width: int
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
    box_height: int = HEIGHT
    is_narrow: bool = False


@dataclass
class _Layout:
    """The picture so far: left to right, or downwards if it is narrow."""

    is_narrow: bool = False
    boxes: list[GraphBox] = field(default_factory=list[GraphBox])
    edges: list[str] = field(default_factory=list[str])
    next_y: int = 0
    omitted: int = 0

    def place(self, row: ResourceRow, depth: int) -> int | None:
        """Places a resource and all below it; returns where its middle is, None if omitted."""
        if len(self.boxes) >= MAX_BOXES:
            self.omitted += 1 + row.below
            return None
        # The box is inserted before its children, which is the order of the keyboard.
        index = len(self.boxes)
        x, width = self._columns(depth)
        y = self._next() if self.is_narrow else 0
        self.boxes.append(_box(row, x, y, width))
        middles = self.place_all(row.children, depth + 1)
        if not self.is_narrow:
            # The picture begins in its corner, also where only a part of it fits.
            y = middles[0] - HEIGHT // 2 if middles else self._next()
            self.boxes[index] = _box(row, x, y, width)
        child_x = self._columns(depth + 1)[0]
        for child in middles:
            self.edges.append(
                _edge_down(x, y + HEIGHT, child_x, child)
                if self.is_narrow
                else _edge_across(x + width, y + HEIGHT // 2, child)
            )
        return y + HEIGHT // 2

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
                x, width = self._columns(depth)
                y = self._next()
                self.boxes.append(_group_box(group, x, y, width))
                middles.append(y + HEIGHT // 2)
        return middles

    def _columns(self, depth: int) -> tuple[int, int]:
        """Where a box at this depth begins, and how wide it is."""
        if self.is_narrow:
            x = _NARROW_MARGIN + min(depth, _MAX_INDENTS) * _INDENT
            return x, NARROW_WIDTH - _NARROW_MARGIN - x
        return _MARGIN + depth * (WIDTH + _GAP_X), WIDTH

    def _next(self) -> int:
        gap, margin = (_NARROW_GAP, _NARROW_MARGIN) if self.is_narrow else (_GAP_Y, _MARGIN)
        y = self.next_y or margin
        self.next_y = y + HEIGHT + gap
        return y


def live_graph(roots: Sequence[ResourceRow]) -> LiveGraph:
    """The picture of a tree."""
    layout = _Layout()
    layout.place_all(roots, 0)
    right = max((box.x + WIDTH for box in layout.boxes), default=0)
    return _graph(layout, right + _MARGIN, _MARGIN)


def narrow_graph(roots: Sequence[ResourceRow]) -> LiveGraph:
    """The picture of a tree for a narrow window, where nothing has to be scrolled aside."""
    layout = _Layout(is_narrow=True)
    layout.place_all(roots, 0)
    return _graph(layout, NARROW_WIDTH, _NARROW_MARGIN)


def _graph(layout: _Layout, width: int, margin: int) -> LiveGraph:
    return LiveGraph(
        boxes=tuple(layout.boxes),
        edges=tuple(layout.edges),
        width=width,
        height=max((box.y + HEIGHT for box in layout.boxes), default=0) + margin,
        omitted=layout.omitted,
        is_narrow=layout.is_narrow,
    )


def _edge_across(x: int, y: int, child_y: int) -> str:
    """The path from the right side of a parent to the left side of a child."""
    middle = x + _GAP_X // 2
    return f"M{x} {y}C{middle} {y} {middle} {child_y} {x + _GAP_X} {child_y}"


def _edge_down(x: int, y: int, child_x: int, child_y: int) -> str:
    """The path from the bottom of a parent to the left side of a child."""
    stem = x + _INDENT // 2
    return f"M{stem} {y}V{child_y - 6}Q{stem} {child_y} {stem + 6} {child_y}H{child_x}"


def _box(row: ResourceRow, x: int, y: int, width: int) -> GraphBox:
    details = f": {row.text}" if row.text else ""
    drift = "" if row.drift is None else ", differs from Git"
    room = width - _ICON - (0 if row.drift is None else _MARK)
    return GraphBox(
        x=x,
        y=y,
        width=width,
        id=row.id,
        anchor=f"box-{row.anchor}",
        title=f"{row.kind} {row.name}, {row.badge.text.lower()}{drift}{details}",
        label=shortened(row.name, int(room / _LETTER)),
        kind=above_name(row, int(room / _KIND_LETTER)),
        badge=row.badge,
        health=row.health,
        is_match=row.is_match,
        has_drift=row.drift is not None,
    )


def above_name(row: ResourceRow, letters: int) -> str:
    """The kind and place of a resource, and before them in words what is wrong, as far as it fits.

    A colour and a sign alone do not say it.
    """
    drift = "" if row.drift is None else row.drift.text
    is_bad = row.badge.tone is Tone.BAD
    word, reason = (row.badge.text, row.text) if is_bad else ("", "")
    prefixes = ((reason or word, drift), (word, drift), (word or drift,))
    place = (row.kind, row.location)
    lines = [" · ".join(filter(None, (*prefix, *place))) for prefix in prefixes]
    fitting = (line for line in lines if len(line) <= letters)
    return next(fitting, shortened(" · ".join(filter(None, place)), letters))


def _group_box(rows: Sequence[ResourceRow], x: int, y: int, width: int) -> GraphBox:
    first, badge = rows[0], health_badge(rows[0].health)
    label = f"{len(rows)} {_TIMES} {first.kind}"
    return GraphBox(
        x=x,
        y=y,
        width=width,
        id="",
        anchor=f"boxes-{first.anchor}",
        title=f"{label}, {badge.text.lower()}; open the list",
        label=shortened(label, int((width - _ICON) / _LETTER)),
        kind=first.kind,
        badge=badge,
        health=first.health,
    )


def shortened(text: str, letters: int) -> str:
    """The text without its middle if it is long: the end tells pods of one replica set apart."""
    if len(text) <= letters:
        return text
    return f"{text[: letters - _TAIL - 1]}…{text[-_TAIL:]}"
