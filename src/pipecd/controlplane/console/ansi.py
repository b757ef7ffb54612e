# SPDX-License-Identifier: Apache-2.0
"""Terminal output as HTML: colours become CSS classes, other escape sequences are dropped.

The content security policy forbids inline styles, so colours beyond the sixteen of the palette
become the nearest of them, which also keeps them readable in both themes.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby, product

from markupsafe import Markup, escape

# Operating-system commands, control sequences, other escapes and stray control characters.
_TOKEN = re.compile(
    r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"
    r"|\x1b\[(?P<parameters>[0-?]*)[ -/]*(?P<final>[@-~])?"
    r"|\x1b[ -/]*[0-~]?"
    r"|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]"
)
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
_Cell = tuple[str, _Style]


def ansi_html(text: str) -> Markup:
    """The text, escaped, with spans for its colours and styles."""
    text = text.replace("\r\n", "\n")
    if "\x1b" not in text and "\r" not in text:
        return escape(_TOKEN.sub("", text))
    lines: list[Markup] = []
    for cells in _lines(text):
        parts: list[Markup] = []
        for style, run in groupby(cells, key=lambda cell: cell[1]):
            part, names = escape("".join(char for char, _ in run)), style.classes()
            parts.append(
                Markup('<span class="{}">{}</span>').format(names, part) if names else part
            )
        lines.append(Markup("").join(parts))
    return Markup("\n").join(lines)


def strip_ansi(text: str) -> str:
    """The text without any escape sequence."""
    return "\n".join("".join(c for c, _ in line) for line in _lines(text.replace("\r\n", "\n")))


def _lines(text: str) -> Iterator[list[_Cell]]:
    style = _PLAIN
    for raw in text.split("\n"):
        cells: list[_Cell] = []
        at = start = 0
        for token in _TOKEN.finditer(raw):
            at = _write(cells, at, raw[start : token.start()], style)
            start = token.end()
            match token["final"]:
                case "m":
                    style = _styled(style, token["parameters"])
                case "K":
                    _erase(cells, at, token["parameters"])
                case _:
                    pass
        _write(cells, at, raw[start:], style)
        yield cells


def _write(cells: list[_Cell], at: int, text: str, style: _Style) -> int:
    """Overwrites existing cells, as a terminal does after a carriage return."""
    for char in text:
        if char == "\r":
            at = 0
        else:
            cells[at : at + 1] = [(char, style)]
            at += 1
    return at


def _erase(cells: list[_Cell], at: int, parameters: str) -> None:
    match parameters:
        case "" | "0":
            del cells[at:]
        case "1":
            cells[:at] = [(" ", _PLAIN)] * min(at, len(cells))
        case _:
            cells[:] = [(" ", _PLAIN)] * at


def _styled(style: _Style, parameters: str) -> _Style:
    """The style after one SGR sequence; unknown parameters are skipped."""
    if not re.fullmatch(r"(?:[0-9]{0,9}[;:])*[0-9]{0,9}", parameters):
        return style
    codes = [int(p or 0) for p in re.split("[;:]", parameters)]
    while codes:
        code = codes.pop(0)
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


def _extended(codes: list[int]) -> int | None:
    """Removes the colour that follows 38 or 48 from the list and returns it."""
    match codes[:1]:
        case [5]:
            number = codes[1] if len(codes) > 1 else 0
            del codes[:2]
            return _nearest(*_XTERM[min(number, 255)])
        case [2]:
            red, green, blue = [*codes[1:4], 0, 0, 0][:3]
            del codes[:4]
            return _nearest(red, green, blue)
        case _:
            return None


def _nearest(red: int, green: int, blue: int) -> int:
    def distance(index: int) -> int:
        r, g, b = _PALETTE[index]
        return (r - red) ** 2 + (g - green) ** 2 + (b - blue) ** 2

    return min(range(len(_PALETTE)), key=distance)
