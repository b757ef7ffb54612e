# SPDX-License-Identifier: Apache-2.0
"""Questions to the documentation, and the sections that answer them."""

import pytest

from pipecd.controlplane.console.documentation import Document, read_documents
from pipecd.controlplane.console.documentation_search import document_sections, find_sections

SECTIONS = document_sections(read_documents().values())


@pytest.mark.parametrize(
    ("question", "href"),
    [
        pytest.param("canary", "/help/kubernetes#canary", id="a word"),
        pytest.param("configure a canary", "/help/kubernetes#canary", id="as somebody says it"),
        pytest.param(
            "How do I encrypt a secret?", "/help/secrets#encrypt-and-use-a-secret", id="a question"
        ),
        pytest.param("event watcher", "/help/event-watcher", id="the title of a page"),
        pytest.param("WAIT_APPROVAL", "/help/stages#wait_approval", id="the name of a stage"),
        pytest.param("backup", "/help/backup", id="a page that begins with a table"),
    ],
)
def test_a_question_leads_to_the_section_that_answers_it(question: str, href: str) -> None:
    found = find_sections(SECTIONS, question, 6)
    assert href in [each.section.href for each in found]


@pytest.mark.parametrize(
    ("question", "href"),
    [
        pytest.param("event watcher", "/help/event-watcher", id="a page before sections like it"),
        pytest.param("canary", "/help/kubernetes#canary", id="a short heading before a long one"),
    ],
)
def test_what_a_question_is_about_comes_first(question: str, href: str) -> None:
    assert find_sections(SECTIONS, question, 6)[0].section.href == href


@pytest.mark.parametrize("question", ["", "how to", "canary frobnicate", "???"])
def test_what_is_in_no_section_finds_nothing(question: str) -> None:
    assert find_sections(SECTIONS, question, 6) == ()


def test_a_long_page_does_not_hide_the_others() -> None:
    found = find_sections(SECTIONS, "kubernetes", 6)
    names = [each.section.name for each in found]
    assert len(found) == 6
    assert max(names.count(name) for name in names) <= 2


def test_headings_in_code_are_no_sections() -> None:
    document = Document("a", "# A\n\nText.\n\n```sh\n## no heading\n```\n\n## One\nx\n")
    assert [each.heading for each in document_sections([document])] == ["", "One"]


@pytest.mark.parametrize(
    ("text", "excerpt"),
    [
        pytest.param(
            "Nothing here.\nSet `replicas` to [two](b.md).",
            "Set replicas to two.",
            id="the sentence with the word",
        ),
        pytest.param(
            "With more than\none of the `replicas`, share a cache.",
            "With more than one of the replicas, share a cache.",
            id="a sentence of two lines",
        ),
        pytest.param("- First.\n- Set `replicas`.", "Set replicas.", id="an item without its mark"),
        pytest.param(
            "| Field | Meaning |\n|---|---|\n| `replicas` | how many |",
            "replicas · how many",
            id="a row of a table",
        ),
        pytest.param(
            "A sample:\n\n```yaml\nspec:\n  replicas: 2\n```",
            "replicas: 2",
            id="the line of a sample when no sentence has the word",
        ),
    ],
)
def test_the_excerpt_is_plain_text_about_the_word(text: str, excerpt: str) -> None:
    document = Document("a", f"# A\n\nText.\n\n## One\n{text}\n")
    found = find_sections(document_sections([document]), "replicas", 6)
    assert [each.excerpt for each in found] == [excerpt]
