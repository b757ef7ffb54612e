# SPDX-License-Identifier: Apache-2.0
"""Characters that nobody sees, shown in the texts of a page.

A name with a mark of direction reads as another name, and one with a space of no width looks equal
to the name without it: somebody would approve what they did not mean. Such marks are shown as
U+FFFD, and a letter has at most a few accents, as more of them cover the lines above. Attributes
and fields keep their values, so that forms and links mean what they meant.
"""

import re

_SHOWN = "\N{REPLACEMENT CHARACTER}"
# Marks that turn a text around or have no width. Joiners, which some scripts need, and the isolates
# that `isolate` adds are no such marks.
_HIDDEN = "\u00ad\u180e\u200b\u202a-\u202e\u2060-\u2067\u206a-\u206f\ufeff"
_ACCENTS = "\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f"
_MAX_ACCENTS = 4
_WRONG = re.compile(f"[{_HIDDEN}]|[{_ACCENTS}]{{{_MAX_ACCENTS + 1}}}")
# What is left as it is, a mark, or a letter with too many accents.
_PART = re.compile(
    f"(<textarea.*?</textarea>|<[^>]*>)|([{_HIDDEN}])"
    f"|(?<=[{_ACCENTS}]{{{_MAX_ACCENTS}}})[{_ACCENTS}]+",
    re.DOTALL,
)


def show_hidden_marks(html: str) -> str:
    """The page with hidden marks shown in its texts; values in its tags stay as they are."""
    if not _WRONG.search(html):
        return html
    return _PART.sub(lambda part: part[1] or (_SHOWN if part[2] else ""), html)
