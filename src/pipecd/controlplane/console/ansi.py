# SPDX-License-Identifier: Apache-2.0
"""Terminal output as HTML: colours become CSS classes, other escape sequences are dropped.

The content security policy forbids inline styles, so colours beyond the sixteen of the palette
become the nearest of them, which also keeps them readable in both themes.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby, pairwise, product
from operator import itemgetter

from markupsafe import Markup, escape

# Operating-system commands, control sequences, other escapes and stray control characters.
_TOKEN = re.compile(
    r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"
    r"|\x1b\[(?P<parameters>[0-?]*)[ -/]*(?P<final>[@-~])?"
    r"|\x1b[ -/]*[0-~]?"
    r"|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]"
)
_ERASE = re.compile(r"\x1b\[[0-?]*[ -/]*K")
_PALETTE = (
    (0, 0, 0), (187, 0, 0), (0, 187, 0), (187, 187, 0),
    (0, 0, 187), (187, 0, 187), (0, 187, 187), (187, 187, 187),
    (85, 85, 85), (255, 85, 85), (85, 255, 85), (255, 255, 85),
    (85, 85, 255), (255, 85, 255), (85, 255, 255), (255, 255, 255),
)  # fmt: skip
_LEVELS = (0, 95, 135, 175, 215, 255)
# The 256 colours of xterm: the palette, a cube of 6 x 6 x 6 and 24 shades of grey.
_XTERM = (*_PALETTE, *product(_LEVELS, _LEVELS, _LEVELS), *((g, g, g) for g in range(8, 239, 10)))
_ON = {1: "bold", 2: "faint", 3: "italic", 4: "underline", 7: "reverse", 9: "strike"}
_OFF = {22: ("bold", "faint"), 23: ("italic",), 24: ("underline",), 27: ("reverse",),
        29: ("strike",)}  # fmt: skip


# Longer numbers than any code or colour has.
_MAX_CODE_DIGITS = 9


@dataclass(frozen=True)
class _Style:
    fg: int | None = None
    bg: int | None = None
    flags: frozenset[str] = frozenset()

    def classes(self) -> str:
        names = [f"fg{self.fg}"] if self.fg is not None else []
        names += [f"bg{self.bg}"] if self.bg is not None else []
        return " ".join(names + sorted(self.flags))


_PLAIN = _Style()
# A character and its CSS classes.
_Cell = tuple[str, str]
_BLANK: _Cell = (" ", "")
# Where a run of one style starts and ends in its line, and its CSS classes.
_Run = tuple[int, int, str]


# A link in a log; characters that rather end a sentence or close a bracket are not part of it.
_LINK = re.compile(r"https?://[^\s<>\"'`\\^{}|]*[^\s<>\"'`\\^{}|.,:;!?)\]]", re.IGNORECASE)


def ansi_html(text: str, mark: re.Pattern[str] | None = None) -> Markup:
    """The text, escaped, with spans for its colours and styles, links, and marks where it matches.

    Links lead to web sites only.
    """
    text = text.replace("\r\n", "\n")
    if "\x1b" not in text and "\r" not in text:
        text = _TOKEN.sub("", text)
        if mark is None and "://" not in text:
            return escape(text)
        lines = [_line_html(line, [], mark) for line in text.split("\n")]
    else:
        lines: list[str] = []
        for cells in _lines(text):
            runs: list[_Run] = []
            for names, run in groupby(cells, key=itemgetter(1)):
                start = runs[-1][1] if runs else 0
                runs.append((start, start + len(list(run)), names))
            lines.append(_line_html("".join(char for char, _ in cells), runs, mark))
    # Names of classes are ours, and the characters and addresses are escaped.
    return Markup("\n".join(lines))  # noqa: S704


def _line_html(text: str, runs: list[_Run], mark: re.Pattern[str] | None) -> str:
    """One line; links and marks may begin and end inside of a run of one style."""
    links = {found.start(): found for found in _LINK.finditer(text)} if "://" in text else {}
    marks = [found.span() for found in mark.finditer(text)] if mark else []
    cuts = {0, len(text)}
    cuts.update(end for found in links.values() for end in found.span())
    cuts.update(end for span in marks for end in span)
    cuts.update(end for start, stop, _ in runs for end in (start, stop))
    ordered = sorted(cuts)
    parts: list[str] = []
    run = marked = 0
    link_end = -1
    for start, stop in pairwise(ordered):
        while run < len(runs) and runs[run][1] <= start:
            run += 1
        while marked < len(marks) and marks[marked][1] <= start:
            marked += 1
        if start in links:
            link_end = links[start].end()
            href = escape(links[start][0])
            parts.append(f'<a href="{href}" rel="noopener noreferrer nofollow">')
        part = str(escape(text[start:stop]))
        if marked < len(marks) and marks[marked][0] <= start:
            part = f"<mark>{part}</mark>"
        if run < len(runs) and runs[run][2]:
            part = f'<span class="{runs[run][2]}">{part}</span>'
        parts.append(part)
        if stop == link_end:
            parts.append("</a>")
    return "".join(parts)


def visible_text(text: str) -> str:
    """The text as people see it, without any escape sequence."""
    if "\r" in text or _ERASE.search(text):
        return strip_ansi(text)
    return without_escapes(text)


def without_escapes(text: str) -> str:
    """The text without escape sequences, with what later characters overwrite or erase."""
    return _TOKEN.sub("", text)


def strip_ansi(text: str) -> str:
    """The text without any escape sequence."""
    return "\n".join("".join(c for c, _ in line) for line in _lines(text.replace("\r\n", "\n")))


def _lines(text: str) -> Iterator[list[_Cell]]:
    style, names = _PLAIN, ""
    for raw in text.split("\n"):
        line = _Line()
        start = 0
        for token in _TOKEN.finditer(raw):
            line.write(raw[start : token.start()], names)
            start = token.end()
            match token["final"]:
                case "m":
                    style = _styled(style, token["parameters"])
                    names = style.classes()
                case "K":
                    line.erase(token["parameters"])
                case _:
                    pass
        line.write(raw[start:], names)
        yield line.cells


class _Line:
    """A line of a terminal: what is written, and where the cursor is.

    Every character is written, blanked and removed once for each time it was sent, however many
    sequences erase it, so that a line takes time in proportion to its length.
    """

    def __init__(self) -> None:
        self.cells: list[_Cell] = []
        # The cursor is never behind the end of the cells; the first cells up to `_blank` are blank.
        self._cursor = self._blank = 0

    def write(self, text: str, names: str) -> None:
        """Overwrites existing cells, as a terminal does after a carriage return."""
        first, *others = text.split("\r")
        self._put(first, names)
        for part in others:
            self._cursor = 0
            self._put(part, names)

    def erase(self, parameters: str) -> None:
        """Erases to the end of the line, to the cursor, or the whole line."""
        at = self._cursor
        is_to_end = parameters in ("", "0")
        if parameters != "1":
            del self.cells[at:]
        if not is_to_end and at > self._blank:
            self.cells[self._blank : at] = [_BLANK] * (at - self._blank)
            self._blank = at

    def _put(self, text: str, names: str) -> None:
        if text:
            end = self._cursor + len(text)
            self.cells[self._cursor : end] = [(char, names) for char in text]
            self._blank = min(self._blank, self._cursor)
            self._cursor = end


def _styled(style: _Style, parameters: str) -> _Style:
    """The style after one SGR sequence; unknown parameters are skipped."""
    if not re.fullmatch(r"(?:[0-9]{0,9}[;:])*[0-9]{0,9}", parameters):
        return style
    # The next one is at the end.
    codes = [_code(p) for p in reversed(re.split("[;:]", parameters))]
    while codes:
        code = codes.pop()
        tens, colour = divmod(code, 10)
        if code == 0:
            style = _PLAIN
        elif code in _ON:
            style = replace(style, flags=style.flags | {_ON[code]})
        elif code in _OFF:
            style = replace(style, flags=style.flags - set(_OFF[code]))
        elif code in (38, 48):
            style = _with_colour(style, code == 38, _extended(codes))
        elif code in (39, 49):
            style = _with_colour(style, code == 39, None)
        elif tens in (3, 4, 9, 10) and colour < 8:
            style = _with_colour(style, tens in (3, 9), colour + (8 if tens > 4 else 0))
    return style


def _with_colour(style: _Style, foreground: bool, colour: int | None) -> _Style:
    return replace(style, fg=colour) if foreground else replace(style, bg=colour)


def _code(text: str) -> int:
    return int(text[:_MAX_CODE_DIGITS] or 0)


def _extended(codes: list[int]) -> int | None:
    """Removes the colour that follows 38 or 48 from the end of the list and returns it."""
    match codes[-1:]:
        case [5]:
            number = codes[-2] if len(codes) > 1 else 0
            del codes[-2:]
            return _nearest(*_XTERM[min(number, 255)])
        case [2]:
            red, green, blue = [*codes[-2:-5:-1], 0, 0, 0][:3]
            del codes[-4:]
            return _nearest(red, green, blue)
        case _:
            return None


def _nearest(red: int, green: int, blue: int) -> int:
    def distance(index: int) -> int:
        r, g, b = _PALETTE[index]
        return (r - red) ** 2 + (g - green) ** 2 + (b - blue) ** 2

    return min(range(len(_PALETTE)), key=distance)
