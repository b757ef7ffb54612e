# SPDX-License-Identifier: Apache-2.0
"""Times, durations, counts, labels and links as text for people.

The browser keeps relative times and running durations up to date with the same rules
(`assets/times.js`); a test compares the two.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from unicodedata import bidirectional
from urllib.parse import urlsplit

from pipecd.model.clock import from_unix, to_unix

MINUTE, HOUR, DAY = 60, 3600, 86400
# In letters: the width of a column of labels, the padding of one, and what counts the others.
LABEL_COLUMN, _PADDING, _MORE = 35, 3, 5
MONTH, YEAR = 30 * DAY, 365 * DAY
# Words that may begin a sentence of ours or of a piped; any other one may be a name.
_WORDS = """
    a all an another any because both by cannot commit could each every for from how if in invalid
    it its many missing more no nobody none not nothing of on only or other our some something such
    that the their there these they this those to too two unable unexpected unknown until waiting
    we what when where which while who why with without you your
    cancelled deleted exited failed finished refused rejected requested rolled skipped stopped
    superseded timed triggered
    add ask cancel choose correct create delete deploy enable encrypt enter fill fix give install
    leave make move open put reload remove rename restart restore retry see select sign start stop
    try upgrade use wait write
    application command deployment plugin repository
"""
_OPENING_WORDS = frozenset(_WORDS.split())
_FIRST_WORD = re.compile(r"[a-z]+(?=\s|[.,!?…]|$)")


# Marks that begin or end what has a direction of its own.
_ISOLATES = dict.fromkeys(range(0x2066, 0x206A))
# Letters that are written from right to left, and marks that change the direction.
_OTHER_DIRECTIONS = frozenset(
    ("R", "AL", "RLE", "RLO", "RLI", "LRE", "LRO", "LRI", "FSI", "PDF", "PDI")
)


@dataclass(frozen=True)
class Timestamp:
    """A point in time for a `<time>` element."""

    iso: str
    exact: str
    relative: str
    clock: str


def timestamp(seconds: int, now: datetime) -> Timestamp | None:
    """A Unix time for a page, in the time zone of `now`; None if it is not set."""
    if seconds <= 0:
        return None
    at = from_unix(seconds)
    local = at.astimezone(now.tzinfo)
    return Timestamp(
        iso=at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        exact=f"{local:%Y-%m-%d %H:%M:%S} {zone_name(local)}",
        relative=ago(to_unix(now) - seconds),
        clock=local.strftime("%H:%M:%S"),
    )


def zone_name(at: datetime) -> str:
    """The abbreviation of a time zone, or its offset where it has none."""
    name = at.strftime("%Z")
    return name if name[:1].isalpha() else f"UTC{name}"


def ago(seconds: int) -> str:
    """How long ago something happened; a future time counts as now."""
    if seconds < 10:
        return "just now"
    if seconds < MINUTE:
        return f"{seconds} s ago"
    if seconds < HOUR:
        return f"{seconds // MINUTE} min ago"
    if seconds < DAY:
        return f"{seconds // HOUR} h ago"
    for length, unit in ((YEAR, "year"), (MONTH, "month"), (DAY, "day")):
        if seconds >= length:
            return f"{plural(seconds // length, unit)} ago"
    raise AssertionError("every length above a day has a unit")


def duration(seconds: int) -> str:
    """A length of time with its two largest units, `1m 05s`."""
    seconds = max(seconds, 0)
    if seconds < MINUTE:
        return f"{seconds}s"
    if seconds < HOUR:
        return f"{seconds // MINUTE}m {seconds % MINUTE:02}s"
    if seconds < DAY:
        return f"{seconds // HOUR}h {seconds % HOUR // MINUTE:02}m"
    return f"{seconds // DAY}d {seconds % DAY // HOUR:02}h"


def day_heading(seconds: int, now: datetime) -> str:
    """The heading for a day in the time zone of `now`."""
    at, today = from_unix(seconds).astimezone(now.tzinfo).date(), now.date()
    match (today - at).days:
        case 0:
            return "Today"
        case 1:
            return "Yesterday"
        case _:
            return f"{at:%A}, {at.day} {at:%B %Y}"


def plural(number: int, noun: str) -> str:
    """`1 stage`, `2 stages`; exact up to 9,999, in thousands above."""
    count = f"{number:,}" if number < 10_000 else f"{number // 1000:,}k+"
    return f"{count} {noun if number == 1 else noun + 's'}"


def join_words(words: Sequence[str], last: str = "and") -> str:
    """`a`, `a and b`, `a, b and c`."""
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} {last} {words[-1]}"


def sentence(text: str) -> str:
    """The text with a full stop, and a capital first letter if it surely begins with a word.

    A name at its beginning, such as `cart`, `replicas: 5` or `app.pipecd.yaml`, stays as it is.
    """
    text = clause(text)
    first = _FIRST_WORD.match(text)
    return text[0].upper() + text[1:] if first and first[0] in _OPENING_WORDS else text


def clause(text: str) -> str:
    """The text with a full stop, to follow a colon."""
    # What a program printed nothing after, such as "exited with code 1:".
    text = text.strip().rstrip(":").rstrip()
    return text if not text or text.endswith((".", "!", "?", "…")) else text + "."


def isolate(text: str) -> str:
    """The text so that its direction does not turn the words beside it around, without elements.

    For sentences with names in them and the titles of pages, which cannot have `<bdi>`. Isolates of
    its own, which may not end with it, are dropped.
    """
    is_plain = all(bidirectional(c) not in _OTHER_DIRECTIONS for c in text)
    return text if is_plain else f"\u2068{text.translate(_ISOLATES)}\u2069"


def safe_link(url: str) -> str:
    """The URL if it is http(s), else an empty text: links from data must not run scripts."""
    url = url.strip()
    if not url or any(ord(c) <= 32 for c in url):
        return ""
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    if parts.scheme in ("http", "https"):
        return url if parts.hostname else ""
    host = url.split("/", 1)[0]
    is_host = "." in host and ":" not in host and "@" not in host
    return f"https://{url}" if not parts.scheme and is_host else ""


def pipectl_flags(url: str) -> tuple[str, ...]:
    """The flags with which a command of pipectl reaches the control plane at `url`."""
    parts = urlsplit(url)
    insecure = ("--insecure",) if parts.scheme == "http" else ()
    return (f"--address={parts.netloc}", *insecure, "--api-key-file=api-key")


def label_texts(labels: Mapping[str, str]) -> tuple[str, ...]:
    """`key: value`, sorted by key."""
    return tuple(f"{key}: {labels[key]}" for key in sorted(labels))


def fitting_labels(texts: Sequence[str]) -> Sequence[str]:
    """As many labels as fit whole into a column of a list, at least one; the others are counted."""
    room = LABEL_COLUMN - (_MORE if len(texts) > 1 else 0)
    shown = 0
    for text in texts:
        room -= len(text) + _PADDING
        is_last = shown == len(texts) - 1
        if shown and room + (_MORE if is_last else 0) < 0:
            break
        shown += 1
    return texts[:shown]


def initials(name: str) -> str:
    """Two letters instead of an avatar; images of other hosts are never loaded."""
    words = re.split(r"[-_.\s]+", name.strip())
    if len(words) > 1 and words[0] and words[1]:
        return (words[0][0] + words[1][0]).upper()
    return name[:2].upper() or "?"
