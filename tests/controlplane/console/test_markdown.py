# SPDX-License-Identifier: Apache-2.0
"""Markdown becomes HTML that runs nothing and loads nothing."""

import pytest

from pipecd.controlplane.console.markdown import (
    MAX_CHARACTERS,
    Section,
    description_html,
    render_document,
    slug,
)


@pytest.mark.parametrize(
    ("text", "html"),
    [
        pytest.param("**bold**", "<p><strong>bold</strong></p>\n", id="emphasis"),
        pytest.param("# Cart", "<h3>Cart</h3>\n", id="headings are below those of the page"),
        pytest.param("###### deep", "<h6>deep</h6>\n", id="but not below the last one"),
        pytest.param("a\nb", "<p>a<br />\nb</p>\n", id="a line break stays one"),
        pytest.param(
            "[wiki](https://wiki.example/a?b=c&d)",
            '<p><a href="https://wiki.example/a?b=c&amp;d" rel="noopener noreferrer">wiki</a></p>\n',
            id="a link",
        ),
        pytest.param("<b onclick=x>", "<p>&lt;b onclick=x&gt;</p>\n", id="HTML is shown as text"),
        pytest.param(
            "![alt](https://evil.example/pixel)",
            '<p>!<a href="https://evil.example/pixel" rel="noopener noreferrer">alt</a></p>\n',
            id="an image is a link",
        ),
    ],
)
def test_descriptions_are_markdown(text: str, html: str) -> None:
    assert description_html(text) == html


@pytest.mark.parametrize(
    "url",
    [
        "javascript:alert(1)",
        "JaVaScRiPt:alert(1)",
        "&#106;avascript:alert(1)",
        "data:text/html,x",
        "vbscript:x",
        "file:///etc/passwd",
        "//evil.example",
        "/settings/project",
        "#top",
        "relative.md",
        "mailto:a@b.example",
    ],
)
@pytest.mark.parametrize("form", ["[x]({})", "<{}>", "[x]: {}\n\n[x]"])
def test_only_links_to_the_web_are_links(url: str, form: str) -> None:
    assert "href" not in description_html(form.format(url))


def test_what_is_too_long_is_cut() -> None:
    assert len(description_html("a" * (2 * MAX_CHARACTERS))) < MAX_CHARACTERS + 20


def test_deep_nesting_does_not_crash() -> None:
    assert description_html(">" * 5000 + "[" * 5000)


def test_the_headings_of_a_document_are_anchors() -> None:
    links = {"api.md": "/docs/api"}
    text = "## Keys on the keyboard\n[a](api.md) [b](b.png)"
    html = render_document(text, lambda url: links.get(url, "")).html
    assert '<h2 id="keys-on-the-keyboard">' in html
    assert '<a href="/docs/api">a</a>' in html
    assert "b.png" not in html


def test_the_sections_of_a_document_are_its_contents() -> None:
    document = render_document("## Keys of `pipectl` & more\n### Below\n## Last", lambda _: "")
    assert document.sections == (
        Section("keys-of-pipectl--more", "Keys of pipectl & more", 2),
        Section("below", "Below", 3),
        Section("last", "Last", 2),
    )


def test_headings_with_the_same_text_have_their_own_anchors() -> None:
    document = render_document("## Added\n## Added\n## Added", lambda _: "")
    assert [section.anchor for section in document.sections] == ["added", "added-1", "added-2"]


def test_the_code_of_a_document_can_be_copied() -> None:
    html = render_document("```yaml\na: </pre>\n```\n", lambda _: "").html
    assert html.count("data-copy-code") == 1
    assert html.endswith("a: &lt;/pre&gt;\n</code></pre>\n</div>")


def test_anchors_are_those_of_git_hosts() -> None:
    assert slug("`pipectl event register`: how?") == "pipectl-event-register-how"


def test_code_can_be_scrolled_by_the_keyboard() -> None:
    assert '<pre tabindex="0">' in description_html("    make test\n")


def test_cells_of_tables_carry_the_heading_of_their_column() -> None:
    html = render_document("| Flag | What `it` <b> is |\n|---|---|\n| a | b |\n", str).html
    assert '<td data-label="Flag">a</td>' in html
    assert '<td data-label="What it &lt;b&gt; is">b</td>' in html


def test_comments_of_documents_are_not_shown() -> None:
    text = "Save this:\n\n<!-- file: a.py -->\n\n```python\nx = 1 # <!-- y -->\n```\n"
    html = render_document(text, str).html
    assert "file: a.py" not in html
    assert "<p></p>" not in html
    assert "Save this:" in html
    assert "&lt;!-- y --&gt;" in html
