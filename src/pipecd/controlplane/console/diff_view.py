# SPDX-License-Identifier: Apache-2.0
"""View model of a diff as plugins and pipeds of upstream write it: by resource, with counts.

Drift and plan previews are text on the wire. Three kinds of headings begin a resource: numbered
ones of manifests, comments of a Terraform plan, and the file names of a unified diff. A list
of files, as the process plugin previews it, has a sign before each name. Text without any
difference is a list of sentences.
"""

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from hashlib import sha256

from pipecd.controlplane.console.formatting import plural, sentence
from pipecd.controlplane.console.status_badge import Badge, Tone

# A run of unchanged lines is folded if it is longer than this; some lines around it stay visible.
_FOLDED_FROM, _CONTEXT = 8, 2
# Resources are folded if the diff has more lines than this.
MAX_OPEN_LINES = 120
# What is beyond these limits is not shown; the text of a diff is as long as its piped wants.
MAX_LINES = 5000
MAX_LINE_LENGTH = 2000
MAX_CHARACTERS = 1_000_000
_MAX_NAME_LENGTH = 500
_SHORT_TEXT = 20_000

_TARGET_HEAD = re.compile(r"(?:(?P<target>[^\s:]+): )?(?P<text>Diff between .*)")
_NUMBERED = re.compile(
    r'(?P<sign>[-+#]) \d+\. name="(?P<name>[^"]*)", kind="(?P<kind>[^"]*)", '
    r'namespace="(?P<namespace>[^"]*)", apiVersion="[^"]*"'
)
_TERRAFORM = re.compile(
    r"\s*# (?P<address>\S.*?)(?: is tainted, so)? (?P<verb>will be|must be|has) (?P<what>.+)"
)
_DEFINITION = re.compile(r"  (?P<name>[A-Z]\w*Definition):$")
_OMITTED = re.compile(r"\.\.\. \((?P<text>.+)\)")
_PLAN = re.compile(r"Plan: .*\.$")
_PLAN_SIGN = re.compile(r"(?P<indent> *)(?P<sign>[-+~])(?P<replaced>/[-+])? (?P<text>.*)")
_MODULE = re.compile(r"module\.[^.\[]+(\[[^\[\]]*\])?\.")
# A file of a list, as in previews of processes; a colon or equals sign makes it a setting.
_LISTED_FILE = re.compile(r"(?P<sign>[-+~]) (?P<name>[^\s:=](?:(?!: | = ).)*(?<!:))")
_FILE = "File"


class ChangeKind(StrEnum):
    """What becomes of a resource; the values are CSS classes."""

    ADD = "add"
    REMOVE = "remove"
    CHANGE = "change"
    # Both deleted and created again, as Terraform replaces what it cannot change.
    REPLACE = "replace"


class LineKind(StrEnum):
    """What a line of a diff is; the values are CSS classes."""

    ADD = "add"
    REMOVE = "remove"
    CHANGE = "change"
    REPLACE = "replace"
    SAME = "same"
    # The path of the field that follows, or the position of a hunk.
    PLACE = "place"


_SIGNS = {"+": LineKind.ADD, "-": LineKind.REMOVE, "~": LineKind.CHANGE}
_NUMBERED_KINDS = {"+": ChangeKind.ADD, "-": ChangeKind.REMOVE, "#": ChangeKind.CHANGE}
_LISTED_KINDS = {"+": ChangeKind.ADD, "-": ChangeKind.REMOVE, "~": ChangeKind.CHANGE}
# By the first word of what a Terraform plan says of a resource.
_PLANNED_KINDS = {
    "created": ChangeKind.ADD,
    "destroyed": ChangeKind.REMOVE,
    "replaced": ChangeKind.REPLACE,
}
_DRIFT_BADGES = {
    ChangeKind.ADD: Badge(Tone.WAIT, "plus", "Only in Git"),
    ChangeKind.REMOVE: Badge(Tone.WAIT, "minus", "Not in Git"),
    ChangeKind.CHANGE: Badge(Tone.WAIT, "differ", "Differs"),
    ChangeKind.REPLACE: Badge(Tone.WAIT, "differ", "Differs"),
}
_WHOLE = {
    "Only in Git": "It is in Git and does not run.",
    "Not in Git": "It runs and is not in Git.",
    "Added": "It is added.",
    "Deleted": "It is deleted.",
}
_PREVIEW_BADGES = {
    ChangeKind.ADD: Badge(Tone.OK, "plus", "Added"),
    ChangeKind.REMOVE: Badge(Tone.BAD, "minus", "Deleted"),
    ChangeKind.CHANGE: Badge(Tone.WAIT, "differ", "Changed"),
    ChangeKind.REPLACE: Badge(Tone.BAD, "sync", "Replaced"),
}


@dataclass(frozen=True)
class DiffLine:
    """A line without its sign."""

    kind: LineKind
    text: str


@dataclass(frozen=True)
class DiffPair:
    """A row of the view side by side; None where a side has no line."""

    old: DiffLine | None
    new: DiffLine | None


@dataclass(frozen=True)
class DiffBlock:
    """Lines that are shown, or unchanged lines that are folded."""

    lines: tuple[DiffLine, ...]
    is_folded: bool = False

    @property
    def pairs(self) -> tuple[DiffPair, ...]:
        """The same lines side by side."""
        return tuple(side_by_side(self.lines))


@dataclass(frozen=True)
class DiffSection:
    """The differences of one resource."""

    anchor: str
    change: ChangeKind
    badge: Badge
    name: str
    kind: str = ""
    namespace: str = ""
    target: str = ""
    note: str = ""
    blocks: tuple[DiffBlock, ...] = ()
    added: int = 0
    removed: int = 0
    changed: int = 0
    is_open: bool = True

    # What is different if there are no lines.
    whole: str = ""

    @property
    def location(self) -> str:
        return " · ".join(part for part in (self.namespace, self.target) if part)


@dataclass(frozen=True)
class DiffView:
    """A diff by resource; `findings` are the sentences of a text that is no diff.

    A list of files has both: its files, and sentences about settings.
    """

    summary: str = ""
    note: str = ""
    sections: tuple[DiffSection, ...] = ()
    findings: tuple[str, ...] = ()
    omitted: str = ""
    raw: str = ""

    def __bool__(self) -> bool:
        return bool(self.sections or self.findings)

    @property
    def counts(self) -> "ChangeCounts":
        changes = [section.change for section in self.sections]
        return ChangeCounts(*(changes.count(kind) for kind in ChangeKind))


@dataclass(frozen=True)
class ChangeCounts:
    """How many resources are added, deleted, changed and replaced."""

    added: int = 0
    deleted: int = 0
    changed: int = 0
    replaced: int = 0

    def __bool__(self) -> bool:
        return bool(self.added or self.deleted or self.changed or self.replaced)

    def __add__(self, other: "ChangeCounts") -> "ChangeCounts":
        return ChangeCounts(
            self.added + other.added,
            self.deleted + other.deleted,
            self.changed + other.changed,
            self.replaced + other.replaced,
        )


@dataclass
class _Section:
    change: ChangeKind
    name: str
    kind: str = ""
    namespace: str = ""
    target: str = ""
    note: str = ""
    # A plan of Terraform has its signs after the indentation.
    is_plan: bool = False
    lines: list[DiffLine] = field(default_factory=list[DiffLine])


async def in_thread_if_long(view: Callable[[str], DiffView], text: str) -> DiffView:
    """Returns the view of a text; a long text does not delay other requests."""
    if len(text) <= _SHORT_TEXT:
        return view(text)
    return await asyncio.to_thread(view, text)


def drift_view(text: str, *, max_lines: int = MAX_LINES) -> DiffView:
    """The differences between the live state and Git."""
    summary = "{0.added} in Git only, {0.deleted} not in Git, {different} different"
    return _view(text, _DRIFT_BADGES, summary, max_lines=max_lines)


def preview_view(text: str, *, scope: str = "", max_lines: int = MAX_LINES) -> DiffView:
    """What a change does; `scope` tells the same resource of several diffs on a page apart."""
    summary = "{0.added} added, {0.deleted} deleted, {0.changed} changed, {0.replaced} replaced"
    return _view(text, _PREVIEW_BADGES, summary, scope=scope, max_lines=max_lines)


def _view(
    text: str,
    badges: dict[ChangeKind, Badge],
    summary: str,
    *,
    scope: str = "",
    max_lines: int = MAX_LINES,
) -> DiffView:
    lines = text[:MAX_CHARACTERS].strip("\n").splitlines()
    shown = [_shorten(line) for line in lines[:max_lines]]
    parsed = _parse(shown)
    omitted = parsed.omitted
    if len(text) > MAX_CHARACTERS:
        omitted = "The rest is too long to be shown"
    elif len(lines) > max_lines:
        omitted = f"{plural(len(lines) - max_lines, 'more line')} are not shown"
    if not parsed.sections:
        findings = tuple(sentence(line) for line in shown if line.strip())
        return DiffView(note=parsed.note, findings=findings, omitted=omitted, raw=text)
    is_long = sum(len(each.lines) for each in parsed.sections) > MAX_OPEN_LINES
    seen = Counter[str]()
    sections: list[DiffSection] = []
    for index, each in enumerate(parsed.sections):
        key = "\0".join((scope, each.target, each.kind, each.namespace, each.name))
        # The first of several resources with the same name keeps its address.
        anchor = sha256(f"{key}{seen[key] or ''}".encode()).hexdigest()[:12]
        seen[key] += 1
        # Of a listed file nothing but its name is known.
        is_open = each.kind != _FILE and (index == 0 or not is_long)
        sections.append(_section(each, badges[each.change], f"diff-{anchor}", is_open=is_open))
    view = DiffView(
        note=parsed.note,
        sections=tuple(sections),
        findings=tuple(map(sentence, parsed.findings)),
        omitted=omitted,
        raw=text,
    )
    counts = view.counts
    numbers = summary.format(counts, different=counts.changed + counts.replaced)
    return replace(view, summary=_without_zeros(numbers))


def _shorten(line: str) -> str:
    if len(line) <= MAX_LINE_LENGTH:
        return line
    if heading := _NUMBERED.fullmatch(line):
        # A resource with a long name is still a resource.
        sign, name, kind, namespace = (text[:_MAX_NAME_LENGTH] for text in heading.groups())
        return f'{sign} 0. name="{name}…", kind="{kind}", namespace="{namespace}", apiVersion=""'
    return f"{line[:MAX_LINE_LENGTH]}…"


def _without_zeros(summary: str) -> str:
    return ", ".join(part for part in summary.split(", ") if not part.startswith("0 "))


@dataclass
class _Parsed:
    note: str = ""
    omitted: str = ""
    sections: list[_Section] = field(default_factory=list[_Section])
    findings: list[str] = field(default_factory=list[str])


def _parse(lines: Sequence[str]) -> _Parsed:
    if files := _listed_files(lines):
        others = [line for line in lines if line.strip() and not _LISTED_FILE.fullmatch(line)]
        return _Parsed(sections=files, findings=others)
    parsed, target, current = _Parsed(), "", None
    begins_differences = _before_differences(lines)
    for index, line in enumerate(lines):
        following = lines[index + 1] if index + 1 < len(lines) else ""
        if head := _TARGET_HEAD.fullmatch(line):
            parsed.note = parsed.note or head["text"].rstrip(":")
            target, current = head["target"] or "", None
        elif line.startswith("--- ") and following.startswith("+++ "):
            current = _unified(line, following)
            parsed.sections += [current] if current else []
        elif line.startswith("+++ ") and index and lines[index - 1].startswith("--- "):
            continue
        elif _PLAN.fullmatch(line):
            parsed.note = ". ".join(filter(None, (parsed.note, line.rstrip("."))))
        elif omitted := _OMITTED.fullmatch(line.strip()):
            parsed.omitted = omitted["text"]
        elif (section := _heading(line)) is not None:
            section.target = target
            current = section
            parsed.sections.append(section)
        elif current is not None:
            current.lines.append(_line(line, is_plan=current.is_plan))
        elif line[:1] in _SIGNS or begins_differences[index]:
            current = _Section(ChangeKind.CHANGE, "", target=target, lines=[_line(line)])
            parsed.sections.append(current)
    parsed.sections = [
        each for each in parsed.sections if each.name or any(line.text for line in each.lines)
    ]
    return parsed


def _listed_files(lines: Sequence[str]) -> list[_Section]:
    """The files of a list without their contents; none if the lines are a diff.

    A diff has headings, or lines around those that differ.
    """
    if any(line[:1].isspace() or line.startswith(("---", "+++", "@@", "#")) for line in lines):
        return []
    if any(_heading(line) is not None for line in lines):
        return []
    found = filter(None, map(_LISTED_FILE.fullmatch, lines))
    return [_Section(_LISTED_KINDS[file["sign"]], file["name"], _FILE) for file in found]


def _before_differences(lines: Sequence[str]) -> list[bool]:
    """Whether the ancestors of a field begin at a line, before any heading of a resource."""
    begins, is_followed = [False] * len(lines), False
    for index in range(len(lines) - 1, -1, -1):
        line = lines[index]
        if _heading(line) is not None or _TARGET_HEAD.fullmatch(line):
            is_followed = False
        elif line[:1] in _SIGNS:
            is_followed = True
        begins[index] = is_followed and line.startswith("  ")
    return begins


def _heading(line: str) -> _Section | None:
    if numbered := _NUMBERED.fullmatch(line):
        kind = _NUMBERED_KINDS[numbered["sign"]]
        return _Section(kind, numbered["name"], numbered["kind"], numbered["namespace"])
    if definition := _DEFINITION.fullmatch(line):
        return _Section(ChangeKind.CHANGE, definition["name"])
    if terraform := _TERRAFORM.fullmatch(line):
        what, address = terraform["what"], terraform["address"]
        if "(" in terraform["address"]:
            return None
        change = _PLANNED_KINDS.get(what.partition(" ")[0].rstrip(","), ChangeKind.CHANGE)
        kind = _MODULE.sub("", address).partition(".")[0]
        return _Section(change, address, kind, note=f"{terraform['verb']} {what}", is_plan=True)
    return None


def _unified(old: str, new: str) -> _Section | None:
    """The file of a unified diff; None if the lines only name the two sides."""
    before, after = old[4:].partition(" (")[0].strip(), new[4:].partition(" (")[0].strip()
    return _Section(ChangeKind.CHANGE, after) if before == after else None


def _line(line: str, *, is_plan: bool = False) -> DiffLine:
    if line.startswith("@@") or line.lstrip().startswith("#"):
        return DiffLine(LineKind.PLACE, line)
    if is_plan and (indented := _PLAN_SIGN.fullmatch(line)):
        text = indented["indent"][1:] + " " + indented["text"]
        if indented["replaced"]:
            return DiffLine(LineKind.REPLACE, indented["sign"] + indented["replaced"] + text)
        line = indented["sign"] + text
    sign = _SIGNS.get(line[:1], LineKind.SAME)
    return DiffLine(sign, line if sign is LineKind.CHANGE else " " + line[1:] if line else "")


def _section(parsed: _Section, badge: Badge, anchor: str, *, is_open: bool) -> DiffSection:
    filled = [at for at, line in enumerate(parsed.lines) if line.text.strip()]
    parsed.lines = parsed.lines[filled[0] : filled[-1] + 1] if filled else []
    kinds = [line.kind for line in parsed.lines]
    return DiffSection(
        anchor=anchor,
        change=parsed.change,
        badge=badge,
        name=parsed.name,
        kind=parsed.kind,
        namespace=parsed.namespace,
        target=parsed.target,
        note=parsed.note,
        blocks=tuple(_blocks(parsed.lines)),
        added=kinds.count(LineKind.ADD),
        removed=kinds.count(LineKind.REMOVE),
        changed=kinds.count(LineKind.CHANGE),
        is_open=is_open,
        whole=_WHOLE.get(badge.text, "Its differences are not listed."),
    )


def _blocks(lines: Sequence[DiffLine]) -> Iterator[DiffBlock]:
    """The lines, with long runs of unchanged ones folded."""
    shown: list[DiffLine] = []
    run: list[DiffLine] = []
    for line in (*lines, None):
        if line is not None and line.kind is LineKind.SAME:
            run.append(line)
            continue
        if len(run) > _FOLDED_FROM:
            yield DiffBlock((*shown, *run[:_CONTEXT]))
            yield DiffBlock(tuple(run[_CONTEXT:-_CONTEXT]), is_folded=True)
            shown, run = run[-_CONTEXT:], []
        shown += run
        run = []
        if line is not None:
            shown.append(line)
    if shown:
        yield DiffBlock(tuple(shown))


def side_by_side(lines: Iterable[DiffLine]) -> Iterator[DiffPair]:
    """Pairs removed lines with the added ones that follow them."""
    removed: list[DiffLine] = []
    added: list[DiffLine] = []

    def flush() -> Iterator[DiffPair]:
        for index in range(max(len(removed), len(added))):
            old = removed[index] if index < len(removed) else None
            yield DiffPair(old, added[index] if index < len(added) else None)
        removed.clear()
        added.clear()

    for line in lines:
        match line.kind:
            case LineKind.REMOVE:
                if added:
                    yield from flush()
                removed.append(line)
            case LineKind.ADD:
                added.append(line)
            case LineKind.CHANGE:
                yield from flush()
                yield _split_assignment(line)
            case LineKind.REPLACE:
                yield from flush()
                text = line.text[len("-/+") :]
                yield DiffPair(DiffLine(LineKind.REMOVE, text), DiffLine(LineKind.ADD, text))
            case LineKind.SAME | LineKind.PLACE:
                yield from flush()
                yield DiffPair(line, line)
    yield from flush()


def _split_assignment(line: DiffLine) -> DiffPair:
    """Both sides of `~ key = old -> new`, which Terraform writes in one line."""
    name, _, value = line.text[1:].lstrip().partition(" ")
    equals, value = value.lstrip()[:1], value.lstrip()[1:]
    old, arrow, new = value.lstrip().partition(" -> ")
    if not (line.text.startswith("~ ") and name and equals == "=" and old and arrow and new):
        return DiffPair(line, line)
    key = " " + line.text[1 : -len(old + arrow + new)]
    return DiffPair(DiffLine(LineKind.REMOVE, key + old), DiffLine(LineKind.ADD, key + new))
