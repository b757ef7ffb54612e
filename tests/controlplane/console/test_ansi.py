# SPDX-License-Identifier: Apache-2.0
"""Terminal output becomes safe, readable HTML."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecd.controlplane.console.ansi import ansi_html, strip_ansi


@pytest.mark.parametrize(
    ("text", "html"),
    [
        pytest.param("a <b> & c", "a &lt;b&gt; &amp; c", id="text is escaped"),
        pytest.param(
            "\x1b[31m<x>\x1b[0m y", '<span class="fg1">&lt;x&gt;</span> y', id="colour, escaped"
        ),
        pytest.param("\x1b[32mok\x1b[m!", '<span class="fg2">ok</span>!', id="an empty reset"),
        pytest.param(
            "\x1b[1;4;91mx", '<span class="fg9 bold underline">x</span>', id="a list of codes"
        ),
        pytest.param("\x1b[44mx\x1b[49my", '<span class="bg4">x</span>y', id="background and off"),
        pytest.param("\x1b[1mx\x1b[22my", '<span class="bold">x</span>y', id="bold and off"),
        pytest.param("\x1b[7mx\x1b[27my", '<span class="reverse">x</span>y', id="reverse and off"),
        pytest.param("\x1b[2;3;9mx", '<span class="faint italic strike">x</span>', id="the rest"),
        pytest.param("\x1b[38;5;9mx", '<span class="fg9">x</span>', id="one of 256, named"),
        pytest.param("\x1b[38;5;196mx", '<span class="fg1">x</span>', id="one of 256, nearest"),
        pytest.param("\x1b[38;5;255mx", '<span class="fg15">x</span>', id="one of 256, grey"),
        pytest.param(
            "\x1b[38;2;0;190;0;1mx", '<span class="fg2 bold">x</span>', id="true colour, then bold"
        ),
        pytest.param("\x1b[38mx", "x", id="a colour cut short"),
        pytest.param("\x1b[39;31mx", '<span class="fg1">x</span>', id="default, then red"),
        pytest.param("10 %\r50 %\r100 %", "100 %", id="a carriage return rewrites the line"),
        pytest.param("abc\rX", "Xbc", id="it writes over what stands there"),
        pytest.param("abc\r\x1b[KX", "X", id="unless the line is erased"),
        pytest.param("a\r\nb", "a\nb", id="a line end of another system"),
        pytest.param("\x1b]0;title\x07x", "x", id="a window title is dropped"),
        pytest.param("\x1b[2J\x1b[1;1Hx", "x", id="cursor moves are dropped"),
        pytest.param("bell\x07 \x00zero", "bell zero", id="control characters are dropped"),
        pytest.param("a\tb  c", "a\tb  c", id="tabs and spaces stay"),
    ],
)
def test_terminal_output(text: str, html: str) -> None:
    assert str(ansi_html(text)) == html


LINK = 'rel="noopener noreferrer nofollow"'


@pytest.mark.parametrize(
    ("text", "html"),
    [
        pytest.param("see https://a.example/x?y=1&z.",
            f'see <a href="https://a.example/x?y=1&amp;z" {LINK}>https://a.example/x?y=1&amp;z</a>.',
            id="the full stop is not part of it"),
        pytest.param("(http://a.example/b)",
            f'(<a href="http://a.example/b" {LINK}>http://a.example/b</a>)', id="in brackets"),
        pytest.param('https://a.example/"onclick="x',
            f'<a href="https://a.example/" {LINK}>https://a.example/</a>&#34;onclick=&#34;x',
            id="a quote ends it"),
        pytest.param("\x1b[31mhttps://a.\x1b[0mexample",
            f'<a href="https://a.example" {LINK}><span class="fg1">https://a.</span>example</a>',
            id="of two colours"),
        pytest.param("javascript://a.example/%0aalert(1)", "javascript://a.example/%0aalert(1)",
            id="scripts are no links"),
        pytest.param("://", "://", id="no scheme"),
    ],
)  # fmt: skip
def test_links(text: str, html: str) -> None:
    assert str(ansi_html(text)) == html


def test_a_colour_spans_lines() -> None:
    assert str(ansi_html("\x1b[31ma\nb")) == (
        '<span class="fg1">a</span>\n<span class="fg1">b</span>'
    )


def test_the_raw_log_has_no_escapes() -> None:
    assert strip_ansi("\x1b[31mred\x1b[0m <x>") == "red <x>"


_PIECES = st.sampled_from(
    [
        "\x1b[",
        "31",
        ";",
        "m",
        "38;5;",
        "\r",
        "\n",
        "<script>",
        "&",
        "x",
        "\x1b]",
        "\x07",
        "K",
        "é",
        "https://x",
        ".",
    ]
)


@given(st.lists(_PIECES).map("".join) | st.text())
def test_no_markup_of_the_log_survives(text: str) -> None:
    html = str(ansi_html(text))
    rest = re.sub(
        r'<span class="[a-z0-9 ]+">|</span>|<a href="[^"<>]+" rel="[a-z ]+">|</a>', "", html
    )
    assert "<" not in rest
    assert ">" not in rest
    assert html.count("<span") == html.count("</span>")
    assert "\x1b" not in html
