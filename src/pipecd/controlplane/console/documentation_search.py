# SPDX-License-Identifier: Apache-2.0
"""Finds the sections of the documentation that a question is about."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pipecd.controlplane.console.documentation import Document
from pipecd.controlplane.console.markdown import slug

_HEADING = re.compile(r"^## +(.+)$")
_FENCE = re.compile(r"^\s*(```|~~~)")
_WORD = re.compile(r"[\w-]+")
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_MARKS = re.compile(r"[`*#>]+")
# What begins a paragraph beside an empty line: an item of a list, a row of a table.
_BEGINNING = re.compile(r"\s*(?:[-+*]|\d+\.|\|)\s*")
_RULE = re.compile(r"[\s|:-]+")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z`\"*])")
# Words of questions, which say nothing about what is asked for.
_STOP_WORDS = frozenset(
    {
        *("a", "an", "and", "are", "can", "do", "does", "for", "from", "how", "i", "in", "is"),
        *("it", "my", "of", "on", "the", "to", "use", "what", "when", "where", "why", "with"),
    }
)
_LONG_WORD = 7
_ENDING = 2
_EXCERPT = 110
_MAX_OF_A_DOCUMENT = 2
_MAX_COUNTED = 9


@dataclass(frozen=True)
class DocumentSection:
    """A section of a page of the guide; the text above its first heading has no heading."""

    name: str
    title: str
    heading: str
    text: str
    prose: tuple[str, ...]
    """The lines that are no code."""
    summary: str

    @property
    def href(self) -> str:
        return f"/help/{self.name}" + (f"#{slug(self.heading)}" if self.heading else "")

    @property
    def label(self) -> str:
        """The title of the page, and the heading in it."""
        return f"{self.title}: {_plain(self.heading)}" if self.heading else self.title


@dataclass(frozen=True)
class FoundSection:
    """A section, and the line of it that answers best."""

    section: DocumentSection
    excerpt: str


def document_sections(documents: Iterable[Document]) -> tuple[DocumentSection, ...]:
    """The sections of all pages, in their order."""
    return tuple(section for document in documents for section in _sections_of(document))


def _sections_of(document: Document) -> Iterable[DocumentSection]:
    heading, is_code = "", False
    lines, prose = list[str](), list[str]()

    def section() -> DocumentSection:
        summary = "" if heading else document.summary
        text = "\n".join(lines)
        return DocumentSection(document.name, document.title, heading, text, tuple(prose), summary)

    for line in document.text.splitlines()[1:]:
        if _FENCE.match(line):
            is_code = not is_code
            continue
        found = None if is_code else _HEADING.match(line)
        if found is None:
            lines.append(line)
            if not is_code:
                prose.append(line)
            continue
        yield section()
        heading, lines, prose = found[1].strip(), [], []
    yield section()


def find_sections(
    sections: Sequence[DocumentSection], question: str, limit: int
) -> tuple[FoundSection, ...]:
    """The sections with every word of the question, those that are about it first."""
    stems = _stems(question)
    if not stems:
        return ()
    scored = [(score, each) for each in sections if (score := _score(each, stems))]
    scored.sort(key=lambda pair: -pair[0])
    found: list[FoundSection] = []
    for _, each in scored:
        of_document = sum(other.section.name == each.name for other in found)
        if of_document < _MAX_OF_A_DOCUMENT and len(found) < limit:
            found.append(FoundSection(each, _excerpt(each, stems)))
    return tuple(found)


def _stems(question: str) -> tuple[str, ...]:
    """The words to look for; the ending of a long one is cut: configure finds configuration."""
    words = dict.fromkeys(_WORD.findall(question.lower()))
    return tuple(
        word[:-_ENDING] if len(word) >= _LONG_WORD else word
        for word in words
        if word not in _STOP_WORDS
    )


def _score(section: DocumentSection, stems: Sequence[str]) -> int:
    """How much the section is about the words; 0 if it lacks one."""
    title, heading, text = section.title.lower(), section.heading.lower(), section.text.lower()
    # A page comes before its sections if its title has all of the words.
    score = 50 if not section.heading and all(stem in title for stem in stems) else 0
    for stem in stems:
        count = text.count(stem)
        if not (count or stem in title or stem in heading):
            return 0
        # A short heading is about its words more than a long one.
        in_heading = max(20 - 2 * len(heading.split()), 10)
        score += 4 * (stem in title) + in_heading * (stem in heading) + min(count, _MAX_COUNTED)
    return score


def _excerpt(section: DocumentSection, stems: Sequence[str]) -> str:
    """The sentence with most of the words, as plain text."""
    if section.summary and any(stem in section.title.lower() for stem in stems):
        return section.summary
    sentences = [
        plain
        for paragraph in _paragraphs(section.prose)
        for sentence in _SENTENCE_END.split(paragraph)
        if (plain := _plain(sentence))
    ]
    best = max(sentences, key=lambda text: sum(stem in text.lower() for stem in stems), default="")
    if not any(stem in best.lower() for stem in stems):
        # Only code has the words: the sentence that happens to be first would say nothing.
        lines = (_plain(line) for line in section.text.splitlines())
        best = next((text for text in lines if any(stem in text.lower() for stem in stems)), best)
    return best if len(best) <= _EXCERPT else best[: _EXCERPT - 1].rsplit(" ", 1)[0] + " …"


def _paragraphs(lines: Iterable[str]) -> Iterable[str]:
    """Paragraphs, items of lists and rows of tables, each in one line without its beginning."""
    words: list[str] = []
    for line in (*lines, ""):
        begins = _BEGINNING.match(line)
        if (begins or not line.strip()) and words:
            yield " ".join(words)
            words = []
        if not _RULE.fullmatch(line):
            words += line[begins.end() :].split() if begins else line.split()
    if words:
        yield " ".join(words)


def _plain(line: str) -> str:
    """A line of Markdown without its marks; cells of a table are separated by points."""
    text = _LINK.sub(r"\1", line)
    cells = [" ".join(_MARKS.sub("", cell).split()) for cell in text.split("|")]
    return " · ".join(filter(None, cells))
