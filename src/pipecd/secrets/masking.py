# SPDX-License-Identifier: Apache-2.0
"""Masks secrets in texts that people can read."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from threading import Lock
from urllib.parse import urlsplit

from pipecd.secrets.forms import SHORTEST, forms

MASK = "******"
_LONGEST_STEP = 8

Span = tuple[int, int]


class Masking:
    """Masks a set of secrets in every form, also when they span several lines."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._forms = sorted({form for secret in secrets for form in forms(secret)})
        self._longest = max(map(len, self._forms), default=0)
        shortest = min(map(len, self._forms), default=SHORTEST)
        self._index = _Index(step=min(shortest - SHORTEST + 1, _LONGEST_STEP))
        for form in self._forms:
            self._index.learn(form)

    def hide(self, text: str) -> str:
        """Masks the secrets in a text."""
        return self._index.hide(text)

    def hide_pieces(
        self, pieces: Sequence[str], *, after: str = "", is_end: bool = True
    ) -> list[str]:
        """Masks secrets in pieces of one text, also those that span two pieces or lines.

        `after` is the text before the pieces. If they are not the end, the possible start of a
        secret is masked as well.
        """
        if not self._forms:
            return list(pieces)
        lines = [piece.split("\n") for piece in pieces]
        in_order = [line for of_piece in lines for line in of_piece]
        text = after + _joined(in_order)
        spans = self._index.spans(text)
        if not is_end and (start := self._partial_secret(text)) is not None:
            spans.append((start, len(text)))
        covered = iter(_covered(in_order, spans, start=len(after)))
        return ["\n".join(islice(covered, len(of_piece))) for of_piece in lines]

    def reach(self, *texts: str) -> str:
        """Returns the end of consecutive texts in which a secret may have started."""
        text = _joined(line for each in texts for line in each.split("\n"))
        return text[max(len(text) - self._longest + 1, 0) :] if self._forms else ""

    def _partial_secret(self, text: str) -> int | None:
        """Returns the start of a secret that the end of the text cuts off, or None."""
        for start in range(max(0, len(text) - self._longest + 1), len(text) - SHORTEST + 1):
            rest = text[start:]
            place = bisect_left(self._forms, rest)
            if place < len(self._forms) and self._forms[place].startswith(rest):
                return start
        return None


class KnownSecrets:
    """Masks the secrets that a process has decrypted, except the oldest.

    For texts that belong to no application in particular, such as the log of the process itself.
    """

    def __init__(self, *, at_most: int = 10_000) -> None:
        self._at_most = at_most
        # The most recently used last.
        self._known: dict[str, bool] = {}
        self._index = _Index(step=1)
        self._lock = Lock()

    def add(self, secrets: Iterable[str]) -> None:
        """Masks these as well from now on; any thread may call it."""
        with self._lock:
            for secret in secrets:
                if not self._known.pop(secret, False):
                    self._learn(secret)
                self._known[secret] = True
            if len(self._known) > self._at_most:
                self._known = dict.fromkeys(list(self._known)[-(self._at_most // 2) :], True)
                self._index = _Index(step=1)
                for secret in self._known:
                    self._learn(secret)

    def hide(self, text: str) -> str:
        """Masks the secrets in a text."""
        return self._index.hide(text)

    def _learn(self, secret: str) -> None:
        for form in forms(secret):
            self._index.learn(form)


class _Index:
    """Finds forms of secrets in a text, in a time that does not depend on their number.

    Every form is indexed by several of its substrings, and only every `step` characters of a text
    are looked up: wherever a form starts, one of its substrings is at a looked up position.
    """

    def __init__(self, *, step: int) -> None:
        self._step = step
        self._marks: dict[str, list[tuple[int, str]]] = {}

    def learn(self, form: str) -> None:
        """Adds a form, which must be long enough for the step."""
        for offset in range(self._step):
            mark = form[offset : offset + SHORTEST]
            self._marks.setdefault(mark, []).append((offset, form))

    def hide(self, text: str) -> str:
        """Masks the indexed forms."""
        if not self._marks:
            return text
        lines = text.split("\n")
        return "\n".join(_covered(lines, self.spans(_joined(lines))))

    def spans(self, text: str) -> list[Span]:
        """Returns the positions of indexed forms; spans may overlap."""
        marks, places = self._marks, range(0, len(text) - SHORTEST + 1, self._step)
        return [
            (i - offset, i - offset + len(form))
            for i in [i for i in places if text[i : i + SHORTEST] in marks]
            for offset, form in marks[text[i : i + SHORTEST]]
            if i >= offset and text.startswith(form, i - offset)
        ]


def _joined(lines: Iterable[str]) -> str:
    """Joins the lines without blank ones."""
    return "".join(line for line in lines if line.strip())


def _covered(lines: Sequence[str], spans: Sequence[Span], *, start: int = 0) -> list[str]:
    """Masks each span of the joined text in the lines."""
    merged, covered = list(_merged(spans)), list[str]()
    for line in lines:
        if not line.strip():
            covered.append(line)
            continue
        end = start + len(line)
        while merged and merged[0][1] <= start:
            merged.pop(0)
        covered.append(_masked(line, start, merged) if merged and merged[0][0] < end else line)
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
    """Merges spans that touch."""
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


def host_of(url: str) -> str:
    """Returns the host of a URL, the part without secrets."""
    try:
        host = urlsplit(url).netloc.rpartition("@")[2]
    except ValueError:
        host = ""
    return host or "an address without a host"
