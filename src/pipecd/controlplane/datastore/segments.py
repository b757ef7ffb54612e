# SPDX-License-Identifier: Apache-2.0
"""Segments of the history: about a thousand deployments packed for searches by text and label.

The packed form has each distinct text once, on a line of its own, with the numbers of the
deployments that have it. A text is found by one scan of these lines, which takes a tenth of a
millisecond, and without reading a document. Most texts of deployments differ only in numbers; so
what has no digit is looked for in the wordings, the texts with each number replaced by a zero, of
which there are few. The grams of a segment, a small set of bits, exclude most segments before they
are read. All of these may name too many deployments, never too few: the caller checks each
document.
"""

import json
import re
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from struct import Struct
from typing import Any, Literal, NamedTuple, cast
from zlib import crc32

from pipecd.controlplane.datastore.expressions import Value
from pipecd.controlplane.datastore.limits import label_text
from pipecd.controlplane.datastore.query import Comparison, Condition, searched_text

# The ids of so many fit into a page of InnoDB.
MAX_ENTRIES = 1000
ID_LENGTH = 16
# Engines refuse values of several megabytes; messages of commits may be long.
MAX_TEXT_BYTES = 1_000_000
GRAM_BITS = 1 << 16
# Ids and hashes are found by their first characters; documents are checked for any others.
KEY_LENGTH = 40
KEY_PREFIXES = (1, 2, 3, 5, 8, 36)
GRAM = 4
# With more values, a column is compared in the entries only.
MAX_VALUES = 16
# The columns whose values are compared by a checksum.
COLUMNS = {
    "Status": "status",
    "Kind": "kind",
    "PipedId": "piped_id",
    "ApplicationId": "application_id",
    "ApplicationName": "application_name",
}
NUMBERS = ("Status", "Kind")

_LINE = b"\n"
_NUMBER = re.compile(rb"[0-9]+")
# The number of entries.
_COUNT = Struct("<I")
# The numbers of lines and of their references.
_LINES = Struct("<2I")


class Match(NamedTuple):
    """An entry of a segment that probably matches."""

    number: int
    updated_at: int

    def found(self, ids: bytes) -> "Found":
        start = ID_LENGTH * self.number
        return Found(self.updated_at, ids[start : start + ID_LENGTH])


class Found(NamedTuple):
    """A deployment that probably matches; `rank` is its place in a list."""

    updated_at: int
    id: bytes

    @property
    def rank(self) -> tuple[int, bytes]:
        return -self.updated_at, self.id


@dataclass(frozen=True)
class Entry:
    """What a segment has of a deployment: where a text may be, its keys, labels and columns."""

    id: bytes
    updated_at: int
    texts: frozenset[bytes]
    keys: frozenset[bytes]
    labels: frozenset[bytes]
    columns: tuple[int, ...]

    @property
    def size(self) -> int:
        return sum(map(len, self.texts))


@dataclass(frozen=True)
class PackedSegment:
    """A segment as it is stored, in parts that are read one by one.

    Most searches need nothing but the wordings, or the texts, of most segments. What belongs to a
    wording and to a label, and the columns, are the entries; ids are read if an entry matches. Few
    searches need the keys.
    """

    first_updated_at: int
    last_updated_at: int
    grams: bytes
    wordings: bytes
    texts: bytes
    entries: bytes
    ids: bytes
    keys: bytes


def entry_of(id: bytes, updated_at: int, document: str | bytes) -> Entry:
    """The entry of a stored document."""
    fields: dict[str, Any] = json.loads(document)
    trigger = cast("dict[str, Any]", fields.get("trigger") or {})
    commit = cast("dict[str, str]", trigger.get("commit") or {})
    texts: tuple[str | None, ...] = (
        fields.get("application_name"),
        commit.get("message"),
        fields.get("summary"),
    )
    keys: tuple[str | None, ...] = (fields.get("id"), commit.get("hash"))
    labels = cast("dict[str, str]", fields.get("labels") or {})
    return Entry(
        id,
        updated_at,
        frozenset(normalized(text) for text in texts if text),
        frozenset(normalized(key[:KEY_LENGTH]) for key in keys if key),
        frozenset(_label_line(label_text(key), label_text(labels[key])) for key in labels),
        tuple(
            _checksum(fields.get(field) or (0 if column in NUMBERS else ""))
            for column, field in COLUMNS.items()
        ),
    )


def normalized(text: str) -> bytes:
    """The text as lines have it: on one line, in lower case, each character for itself."""
    lowered = text.lower() if text.isascii() else "".join(map(_lower, text))
    return lowered.replace("\n", " ").encode(errors="replace")


@lru_cache(maxsize=65536)
def _lower(character: str) -> str:
    lowered = character.lower()
    return lowered if len(lowered) == 1 else character


def _label_line(key: Value, value: Value) -> bytes:
    return f"{key}\0{value}".replace("\n", " ").encode(errors="replace")


def _checksum(value: Value) -> int:
    return crc32(str(value).encode(errors="replace")) & 0xFFFF


def wording(text: bytes) -> bytes:
    """The text with each number replaced by a zero.

    What has no digit is in a text if and only if it is in its wording.
    """
    return _NUMBER.sub(b"0", text)


def pack(entries: Iterable[Entry]) -> Iterator[PackedSegment]:
    """Packs entries, in the order of their updates, into as many segments as they need."""
    part: list[Entry] = []
    size = 0
    for entry in entries:
        if part and (len(part) == MAX_ENTRIES or size + entry.size > MAX_TEXT_BYTES):
            yield _packed(part)
            part, size = [], 0
        part.append(entry)
        size += entry.size
    if part:
        yield _packed(part)


def _packed(entries: Sequence[Entry]) -> PackedSegment:
    texts = _references(entries, lambda entry: entry.texts)
    wordings = _references(entries, lambda entry: {wording(text) for text in entry.texts})
    keys = _references(entries, lambda entry: entry.keys)
    labels = _references(entries, lambda entry: entry.labels)
    wording_area, wording_references = _pack_lines(wordings)
    text_area, text_references = _pack_lines(texts)
    key_area, key_references = _pack_lines(keys)
    label_area, label_references = _pack_lines(labels)
    columns = [array("H", [entry.columns[i] for entry in entries]) for i, _ in enumerate(COLUMNS)]
    times = array("i", [entry.updated_at for entry in entries])
    first, last = min(times), max(times)
    grams = _grams(texts, keys, labels, columns)
    parts = [
        _COUNT.pack(len(entries)),
        *(_little_endian(numbers).tobytes() for numbers in (times, *columns)),
        *(wording_references, label_references, label_area),
    ]
    return PackedSegment(
        first,
        last,
        grams,
        wording_area,
        text_references + text_area,
        b"".join(parts),
        b"".join(entry.id for entry in entries),
        key_references + key_area,
    )


def _pack_lines(references: dict[bytes, list[int]]) -> tuple[bytes, bytes]:
    """The lines, each between two line breaks, and the numbers of the entries that have them."""
    starts = array("I", accumulate(map(len, references.values()), initial=0))
    numbers = array("H", [number for each in references.values() for number in each])
    packed = [_little_endian(each).tobytes() for each in (starts, numbers)]
    area = b"".join(_LINE + line for line in references) + _LINE
    return area, _LINES.pack(len(references), len(numbers)) + b"".join(packed)


def _references(
    entries: Sequence[Entry], lines_of: Callable[[Entry], Iterable[bytes]]
) -> dict[bytes, list[int]]:
    """The numbers of the entries that have each line."""
    references: dict[bytes, list[int]] = {}
    for number, entry in enumerate(entries):
        for line in lines_of(entry):
            references.setdefault(line, []).append(number)
    return references


def _little_endian(numbers: "array[int]") -> "array[int]":
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def _grams(
    texts: Iterable[bytes],
    keys: Iterable[bytes],
    labels: Iterable[bytes],
    columns: Sequence[Iterable[int]],
) -> bytes:
    grams: set[bytes] = set()
    for line in texts:
        grams.update(line[i : i + GRAM] for i in range(len(line)))
    # The beginnings of these, and the ends of texts, are all shorter sequences.
    grams.update([gram[:length] for gram in grams for length in range(1, GRAM)])
    bits = bytearray(GRAM_BITS // 8)
    for slot in (
        *map(_slot, grams),
        *(slot for key in keys for slot in _key_slots(key)),
        *(slot for label in labels for slot in _label_slots(label)),
        *(_value_slot(number, value) for number, of in enumerate(columns) for value in set(of)),
    ):
        bits[slot >> 3] |= 1 << (slot & 7)
    return bytes(bits)


def _slot(gram: bytes) -> int:
    return crc32(gram) % GRAM_BITS


def _key_slots(key: bytes) -> list[int]:
    return [_slot(b"\1" + key[:length]) for length in KEY_PREFIXES if len(key) >= length]


def _label_slots(label: bytes) -> list[int]:
    return [_slot(b"\2" + label), _slot(b"\3" + label)]


def _value_slot(column: int, checksum: int) -> int:
    return _slot(b"\4%c%a" % (column, checksum))


def _text_slots(text: bytes) -> list[int]:
    length = min(GRAM, len(text))
    return [_slot(text[i : i + length]) for i in range(len(text) - length + 1)]


@dataclass(frozen=True)
class SegmentQuery:
    """What a list asks of a segment; conditions that a segment does not know are left out.

    `text` is None if the list is not by text. `columns` has the checksums of the values that a
    column may have, by its number.
    """

    text: bytes | None
    labels: tuple[bytes, ...]
    columns: tuple[tuple[int, frozenset[int]], ...]
    oldest: int
    newest: int

    @classmethod
    def of(cls, conditions: Iterable[Condition], *, newest: int) -> "SegmentQuery":
        """The query of a list that begins with the documents updated at `newest`."""
        text: bytes | None = None
        labels: list[bytes] = []
        columns: list[tuple[int, frozenset[int]]] = []
        oldest = 0
        names = list(COLUMNS)
        for condition in conditions:
            match condition.comparison:
                case Comparison.MENTIONS:
                    text = normalized(searched_text(condition))
                case Comparison.LABELLED:
                    labels.append(_label_line(*condition.values))
                case Comparison.ONE_OF if condition.column in COLUMNS:
                    values = frozenset(map(_checksum, condition.values))
                    columns.append((names.index(condition.column), values))
                case Comparison.AT_LEAST if condition.column == "UpdatedAt":
                    oldest = max(oldest, cast("int", condition.values[0]))
                case _:
                    pass
        return cls(text, tuple(labels), tuple(columns), oldest, newest)

    @cached_property
    def has_number(self) -> bool:
        """Whether the text is looked for in the texts, instead of their wordings."""
        return bool(self.text) and _NUMBER.search(self.text or b"") is not None

    @cached_property
    def _key(self) -> bytes:
        """The first characters of an id or a hash that begins with the text."""
        return (self.text or b"")[:KEY_LENGTH]

    @cached_property
    def _label_bits(self) -> list[tuple[int, int]]:
        return _bits(slot for label in self.labels for slot in _label_slots(label))

    @cached_property
    def _value_bits(self) -> list[list[tuple[int, int]]]:
        """The bits of each column's values, of which a segment needs one."""
        return [
            _bits(_value_slot(number, value) for value in values)
            for number, values in self.columns
            if len(values) <= MAX_VALUES
        ]

    @cached_property
    def _text_bits(self) -> list[tuple[int, int]]:
        return _bits(_text_slots(self.text or b""))

    @cached_property
    def _key_bits(self) -> list[tuple[int, int]]:
        return _bits(_key_slots(self._key))

    def may_have(self, grams: bytes) -> bool:
        """Whether a segment is worth reading, by its grams."""
        if self._label_bits and not _has(grams, self._label_bits):
            return False
        if not all(any(grams[byte] & bit for byte, bit in bits) for bits in self._value_bits):
            return False
        return not self.text or self.may_have_text(grams) or self.may_have_key(grams)

    def may_have_text(self, grams: bytes) -> bool:
        """Whether the texts of a segment are worth reading; otherwise, only its keys are."""
        return _has(grams, self._text_bits)

    def may_have_key(self, grams: bytes) -> bool:
        """Whether the keys of a segment are worth reading; otherwise, only its texts are."""
        return bool(self.text) and _has(grams, self._key_bits)

    def find(self, entries: bytes, lines: bytes = b"", keys: bytes = b"") -> list[Match]:
        """Returns the entries that probably match; without `lines` or `keys`, by none of these.

        The lines are the texts if the text has a number, otherwise the wordings.
        """
        segment = UnpackedEntries(entries)
        matching = [set(segment.of_label(label)) for label in self.labels]
        if self.text is not None:
            matching.append({*self._of_text(segment, lines), *self._of_key(keys)})
        numbers: Iterable[int] = set[int].intersection(*matching) if matching else segment.numbers
        for column, values in self.columns:
            sums = segment.column(column)
            numbers = [number for number in numbers if sums[number] in values]
        times = segment.times
        return [
            Match(number, times[number])
            for number in numbers
            if self.oldest <= times[number] <= self.newest
        ]

    def _of_text(self, segment: "UnpackedEntries", lines: bytes) -> Iterable[int]:
        if not (self.text and lines):
            return ()
        by_text = of_line if self.has_number else segment.of_wording
        return by_text(self.text, lines)

    def _of_key(self, keys: bytes) -> Iterable[int]:
        return of_line(_LINE + self._key, keys) if keys else ()


def _bits(slots: Iterable[int]) -> list[tuple[int, int]]:
    return [(slot >> 3, 1 << (slot & 7)) for slot in slots]


def _has(grams: bytes, bits: Iterable[tuple[int, int]]) -> bool:
    # A generator for `all` would take three times as long.
    for byte, bit in bits:  # noqa: SIM110
        if not grams[byte] & bit:
            return False
    return True


class UnpackedEntries:
    """The entries of a packed segment, which are not copied."""

    def __init__(self, entries: bytes) -> None:
        self._entries = entries
        (count,) = _COUNT.unpack_from(entries)
        self.numbers = range(count)
        self.times = _read(entries, "i", _COUNT.size, count)
        self._columns = _COUNT.size + 4 * count
        self._wording_lines = PackedLines(entries, self._columns + 2 * count * len(COLUMNS))
        self._label_lines = PackedLines(entries, self._wording_lines.end)

    def column(self, number: int) -> Sequence[int]:
        count = len(self.numbers)
        return _read(self._entries, "H", self._columns + 2 * count * number, count)

    def of_wording(self, text: bytes, wordings: bytes) -> Iterator[int]:
        """The entries of the wordings that contain this text."""
        return self._wording_lines.entries(wordings, text, 0)

    def of_label(self, label: bytes) -> Iterator[int]:
        line = _LINE + label + _LINE
        return self._label_lines.entries(self._entries, line, self._label_lines.end)


def of_line(text: bytes, packed: bytes) -> Iterator[int]:
    """The entries of the lines that contain this text, of lines after their references."""
    lines = PackedLines(packed, 0)
    return lines.entries(packed, text, lines.end)


class PackedLines:
    """Which entries have each of some lines."""

    def __init__(self, packed: bytes, start: int) -> None:
        lines, references = _LINES.unpack_from(packed, start)
        starts = start + _LINES.size
        numbers = starts + 4 * (lines + 1)
        self._starts = _read(packed, "I", starts, lines + 1)
        self._numbers = _read(packed, "H", numbers, references)
        self.end = numbers + 2 * references

    def entries(self, lines: bytes, text: bytes, start: int) -> Iterator[int]:
        """The entries of the lines that have this text; the lines begin at `start`."""
        counted, line = start, -1
        while (found := lines.find(text, start)) >= 0:
            # A text that begins with a line break is found at the break before its line.
            found += text.startswith(_LINE)
            line += lines.count(_LINE, counted, found)
            yield from self._numbers[self._starts[line] : self._starts[line + 1]]
            counted, start = found, lines.find(_LINE, found)


def _read(packed: bytes, kind: Literal["i", "I", "H"], start: int, length: int) -> Sequence[int]:
    end = start + length * (2 if kind == "H" else 4)
    if sys.byteorder == "little":
        return memoryview(packed)[start:end].cast(kind)
    return _little_endian(array(kind, packed[start:end]))
