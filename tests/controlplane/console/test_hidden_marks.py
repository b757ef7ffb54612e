# SPDX-License-Identifier: Apache-2.0
"""Marks that nobody sees are shown in texts, and values keep them."""

import pytest

from pipecd.controlplane.console.hidden_marks import show_hidden_marks


@pytest.mark.parametrize(
    ("html", "shown"),
    [
        pytest.param("<b>cart</b>", "<b>cart</b>", id="nothing to show"),
        pytest.param("<b>gnp\u202egpj.exe</b>", "<b>gnp\ufffdgpj.exe</b>", id="a text that turns"),
        pytest.param("a\u2066b\u2067c", "a\ufffdb\ufffdc", id="isolates without end"),
        pytest.param("ad\u200bmin\ufeff", "ad\ufffdmin\ufffd", id="spaces without width"),
        pytest.param("\u2068cart\u2069", "\u2068cart\u2069", id="what isolates a name"),
        pytest.param("\u0645\u06cc\u200c\u062e", "\u0645\u06cc\u200c\u062e", id="a joiner"),
        pytest.param("e\u0301 q\u0307\u0323", "e\u0301 q\u0307\u0323", id="letters with accents"),
        pytest.param("z" + "\u0301" * 60 + "a", "z" + "\u0301" * 4 + "a", id="a tower of accents"),
        pytest.param(
            '<a title="\u202e" href="?q=\u202e">\u202e</a>',
            '<a title="\u202e" href="?q=\u202e">\ufffd</a>',
            id="attributes keep their values",
        ),
        pytest.param(
            "<textarea name=policies>\n\u202e</textarea>\u202e",
            "<textarea name=policies>\n\u202e</textarea>\ufffd",
            id="so do fields",
        ),
        pytest.param("1 &lt; 2 \u202e &gt; 1", "1 &lt; 2 \ufffd &gt; 1", id="escaped brackets"),
    ],
)
def test_hidden_marks(html: str, shown: str) -> None:
    assert show_hidden_marks(html) == shown
