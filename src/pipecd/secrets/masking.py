# SPDX-License-Identifier: Apache-2.0
"""Keeps secrets out of text that people can read."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

from pipecd.secrets.forms import SHORTEST, forms

MASK = "******"
_LONGEST_STEP = 8

Span = tuple[int, int]


class Masking:
    """Hides a set of secrets, in whichever form and over however many lines they are written.

    Every form is known by a few of its characters, and only every so many characters of a text
    are looked up, so that the time does not depend on how many secrets there are.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._forms = sorted({form for secret in secrets for form in forms(secret)})
        self._longest = max(map(len, self._forms), default=0)
        shortest = min(map(len, self._forms), default=SHORTEST)
        self._step = min(shortest - SHORTEST + 1, _LONGEST_STEP)
        # Wherever a form lies in a text, one of these is at a place that is looked up.
        self._marks: dict[str, list[tuple[int, str]]] = {}
        for form in self._forms:
            for offset in range(self._step):
                mark = form[offset : offset + SHORTEST]
                self._marks.setdefault(mark, []).append((offset, form))

    def hide(self, text: str) -> str:
        """The text without the secrets."""
        if not self._forms:
            return text
        lines = text.split("\n")
        return "\n".join(_covered(lines, self._spans(_joined(lines))))

    def hide_pieces(
        self, pieces: Sequence[str], *, after: str = "", is_end: bool = True
    ) -> list[str]:
        """Pieces of one text without the secrets, also those that are cut in two.

        `after` is what came before the pieces. If they are not the end, what may be the beginning
        of a secret is hidden as well.
        """
        if not self._forms:
            return list(pieces)
        text = after + _joined(pieces)
        spans = self._spans(text)
        if not is_end and (begun := self._begun(text)) is not None:
            spans.append((begun, len(text)))
        return _covered(pieces, spans, start=len(after))

    def reach(self, *texts: str) -> str:
        """The end of consecutive texts in which a secret may have begun."""
        text = _joined(texts)
        return text[max(len(text) - self._longest + 1, 0) :] if self._forms else ""

    def _spans(self, text: str) -> list[Span]:
        """Where the secrets are; spans may overlap."""
        marks, places = self._marks, range(0, len(text) - SHORTEST + 1, self._step)
        return [
            (i - offset, i - offset + len(form))
            for i in [i for i in places if text[i : i + SHORTEST] in marks]
            for offset, form in marks[text[i : i + SHORTEST]]
            if i >= offset and text.startswith(form, i - offset)
        ]

    def _begun(self, text: str) -> int | None:
        """Where a secret begins of which the text has not all, if it has enough to tell."""
        for start in range(max(0, len(text) - self._longest + 1), len(text) - SHORTEST + 1):
            rest = text[start:]
            place = bisect_left(self._forms, rest)
            if place < len(self._forms) and self._forms[place].startswith(rest):
                return start
        return None


def _joined(pieces: Iterable[str]) -> str:
    """The text of all pieces; blank ones stand for empty lines."""
    return "".join(piece for piece in pieces if piece.strip())


def _covered(pieces: Sequence[str], spans: Sequence[Span], *, start: int = 0) -> list[str]:
    """The pieces with a mask over each span of their joined text."""
    merged, covered = list(_merged(spans)), list[str]()
    for piece in pieces:
        if not piece.strip():
            covered.append(piece)
            continue
        end = start + len(piece)
        while merged and merged[0][1] <= start:
            merged.pop(0)
        covered.append(_masked(piece, start, merged) if merged and merged[0][0] < end else piece)
        start = end
    return covered


def _masked(piece: str, offset: int, spans: Sequence[Span]) -> str:
    shown, at = list[str](), 0
    for first, last in spans:
        if first - offset >= len(piece):
            break
        shown.append(piece[at : max(first - offset, 0)])
        shown.append(MASK)
        at = last - offset
    shown.append(piece[at:])
    return "".join(shown)


def _merged(spans: Iterable[Span]) -> Iterator[Span]:
    """Spans that touch become one."""
    first, last = -1, -1
    for start, end in sorted(spans):
        if start > last:
            if last >= 0:
                yield first, last
            first, last = start, end
        else:
            last = max(last, end)
    if last >= 0:
        yield first, last
