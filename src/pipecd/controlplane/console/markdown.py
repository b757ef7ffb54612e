# SPDX-License-Identifier: Apache-2.0
"""Markdown as HTML: descriptions that users write, and the documentation.

HTML in the text is shown as text, images are not loaded, and links lead to http(s) only.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

# A description is as long as its writer wants; what is beyond this is not shown.
MAX_CHARACTERS = 20_000
# The parser looks for the end of a link from every bracket.
MAX_BRACKETS = 500
_WEB_LINK = re.compile(r"https?://[^\s]+", re.IGNORECASE)
# Headings below this level are not in the contents.
_MAX_LISTED_LEVEL = 3
_COPY_BUTTON = (
    '<button type="button" class="btn small js-only" data-copy-code aria-label="Copy code">'
    "Copy</button>"
)
# The button stands beside a block of so many lines on phones, and below a longer one.
_SHORT_LINES = 2
_NOT_IN_SLUG = re.compile(r"[^\w\- ]")

_PARSER = MarkdownIt("commonmark", {"html": False, "breaks": True}).enable("table").disable("image")
_DOCUMENT_PARSER = MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")


def _any_link(url: str) -> bool:
    del url
    return True


# `_set_links` decides; the parser would show a link it refuses as its source text.
_PARSER.validateLink = _any_link
_DOCUMENT_PARSER.validateLink = _any_link


def web_link(url: str) -> str:
    """The URL if it is http(s), else an empty text."""
    return url if _WEB_LINK.fullmatch(url) else ""


@lru_cache(maxsize=256)
def description_html(text: str) -> Markup:
    """A description; its headings are below those of the page."""
    text = text[:MAX_CHARACTERS]
    if text.count("[") > MAX_BRACKETS:
        return Markup("<p>{}</p>").format(text)
    tokens = _PARSER.parse(text)
    _set_links(tokens, web_link)
    for token in tokens:
        if token.tag[:1] == "h" and token.tag[1:].isdigit():
            token.tag = f"h{min(int(token.tag[1:]) + 2, 6)}"
    return _html(_PARSER, tokens)


@dataclass(frozen=True)
class Section:
    """A heading of a document that its contents list; the level of `##` is 2."""

    anchor: str
    text: str
    level: int


@dataclass(frozen=True)
class RenderedDocument:
    """A document as HTML, and its sections."""

    html: Markup
    sections: tuple[Section, ...]


def render_document(text: str, link: Callable[[str], str]) -> RenderedDocument:
    """A document whose headings can be linked to; `link` translates the links to other files."""
    tokens = list(_without_comments(_DOCUMENT_PARSER.parse(text)))
    _set_links(tokens, link)
    sections: list[Section] = []
    seen: Counter[str] = Counter()
    for heading, inline in pairwise(tokens):
        if heading.type != "heading_open":
            continue
        anchor = slug(inline.content)
        seen[anchor] += 1
        if seen[anchor] > 1:
            anchor = f"{anchor}-{seen[anchor] - 1}"
        heading.attrSet("id", anchor)
        level = int(heading.tag[1:])
        if level <= _MAX_LISTED_LEVEL:
            sections.append(Section(anchor, _plain_text(inline), level))
        if inline.children is not None:
            inline.children.append(_permalink(anchor))
    return RenderedDocument(_html(_DOCUMENT_PARSER, tuple(_copyable(tokens))), tuple(sections))


def _without_comments(tokens: Sequence[Token]) -> Iterator[Token]:
    """The tokens without the paragraphs that are a comment, which is for tools."""
    is_comment = [
        token.type == "inline"
        and token.content.startswith("<!--")
        and token.content.endswith("-->")
        for token in tokens
    ]
    for before, token, after, is_own in zip(
        [False, *is_comment], tokens, [*is_comment[1:], False], is_comment, strict=False
    ):
        if not (before or is_own or after):
            yield token


def _label_cells(tokens: Sequence[Token]) -> None:
    """Gives each cell of a table the heading of its column, which narrow windows show in it."""
    headings: list[str] = []
    column = 0
    for token, inline in pairwise(tokens):
        match token.type:
            case "table_open":
                headings = []
            case "tr_open":
                column = 0
            case "th_open":
                headings.append(_plain_text(inline))
            case "td_open":
                token.attrSet("data-label", headings[column])
                column += 1
            case _:
                pass


def _copyable(tokens: Iterable[Token]) -> Iterator[Token]:
    """The tokens, with a button that copies it beside every block of code."""
    for token in tokens:
        if token.type not in ("fence", "code_block"):
            yield token
            continue
        size = " short" if token.content.count("\n") <= _SHORT_LINES else ""
        yield Token("html_block", "", 0, content=f'<div class="code{size}">{_COPY_BUTTON}')
        yield token
        yield Token("html_block", "", 0, content="</div>")


def _permalink(anchor: str) -> Token:
    """A link to the heading it stands in; readers of the screen have the contents."""
    href = Markup.escape(anchor)
    content = f' <a class="permalink" href="#{href}" aria-hidden="true" tabindex="-1">#</a>'
    return Token("html_inline", "", 0, content=content)


def _html(parser: MarkdownIt, tokens: Sequence[Token]) -> Markup:
    """The tokens as HTML; what is wider than the page can be scrolled by the keyboard."""
    _label_cells(tokens)
    html = parser.renderer.render(tokens, parser.options, {})
    html = html.replace("<pre>", '<pre tabindex="0">').replace("<table>", '<table tabindex="0">')
    # A corner without a heading is a cell.
    html = html.replace("<th></th>", "<td></td>")
    return Markup(html)  # noqa: S704


def _plain_text(inline: Token) -> str:
    return "".join(child.content for child in inline.children or ())


def slug(heading: str) -> str:
    """The anchor of a heading, as Git hosts form it."""
    return _NOT_IN_SLUG.sub("", heading.lower()).replace(" ", "-")


def _set_links(tokens: Sequence[Token], link: Callable[[str], str]) -> None:
    """Replaces the targets of links; a link without a target becomes plain text."""
    url = ""
    for token in tokens:
        _set_links(token.children or (), link)
        if token.type == "link_open":
            url = link(str(token.attrGet("href") or ""))
            token.attrs.clear()
            if url:
                token.attrSet("href", url)
            if url and not url.startswith(("/", "#")):
                token.attrSet("rel", "noopener noreferrer")
        # Links are never nested.
        if token.type in ("link_open", "link_close") and not url:
            token.tag = "span"
