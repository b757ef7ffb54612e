# SPDX-License-Identifier: Apache-2.0
"""Every sprig function returns what sprig's documentation says."""

from datetime import UTC, datetime
from typing import Any

import pytest

from pipecd.gotemplate.nodes import TemplateMistake
from pipecd.gotemplate.template import FUNCTIONS, render

DATA: dict[str, Any] = {
    "d": {"a": 1, "b": {"c": "deep"}},
    "l": [3, 1, 2],
    "t": datetime(2024, 3, 5, 14, 7, 9, 120000, tzinfo=UTC),
    "none": None,
    "bytes": b"ab",
}

CASES = [
    ('trimAll "$" "$5$"', "5"),
    ('trimSuffix "-" "a-"', "a"),
    ('trimPrefix "-" "-a"', "a"),
    ('untitle "First Word"', "first word"),
    ('repeat 3 "ab"', "ababab"),
    ('substr 0 -1 "abc"', "abc"),
    ('substr -1 2 "abc"', "ab"),
    ('nospace "a b  c"', "abc"),
    ('abbrev 5 "hello world"', "he..."),
    ('initials "First Try"', "FT"),
    ('swapcase "aB"', "Ab"),
    ('wrap 5 "aaa bbb"', "aaa\nbbb"),
    ('wrapWith 5 "|" "aaa bbb"', "aaa|bbb"),
    ('contains "at" "cat"', "true"),
    ('hasPrefix "c" "cat"', "true"),
    ('hasSuffix "x" "cat"', "false"),
    ("squote 1 nil 2", "'1' '2'"),
    ('cat "a" 1 nil', "a 1"),
    ('replace " " "-" "a b"', "a-b"),
    ('plural "one" "many" 1', "one"),
    ('plural "one" "many" 2', "many"),
    ('(splitn "-" 2 "a-b-c")._1', "b-c"),
    ('splitList "" "ab"', "[a b]"),
    ("toStrings (list 1 true)", "[1 true]"),
    ("join \",\" .none", ""),
    ("join \",\" 5", "5"),
    ('regexMatch "^a.c$" "abc"', "true"),
    ('regexFind "b+" "abbc"', "bb"),
    ('regexFind "x" "abbc"', ""),
    ('regexFindAll "[0-9]" "1a2b3" 2', "[1 2]"),
    ('regexFindAll "[0-9]" "1a2b3" -1', "[1 2 3]"),
    ('regexReplaceAllLiteral "a" "banana" "$1"', "b$1n$1n$1"),
    ('regexReplaceAll "(?P<x>a)" "ba" "${x}$$${nope}"', "ba$"),
    ('regexSplit "z+" "pizza" -1', "[pi a]"),
    ('regexSplit "z" "pizza" 2', "[pi za]"),
    ('regexSplit "z" "pizza" 0', "[]"),
    ('regexQuoteMeta "1.2"', "1\\.2"),
    ('base "a/b.txt"', "b.txt"),
    ('dir "a/b.txt"', "a"),
    ('clean "a/../b"', "b"),
    ('ext "a/b.txt"', ".txt"),
    ('isAbs "/a"', "true"),
    ('int "12"', "12"),
    ('int "x"', "0"),
    ('int "0x1f"', "31"),
    ("int 1.9", "1"),
    ("int true", "1"),
    ("int .none", "0"),
    ('float64 "1.5"', "1.5"),
    ('float64 "x"', "0"),
    ('toDecimal "0777"', "511"),
    ("add1 1", "2"),
    ("max 1 3 2", "3"),
    ("min 3 1 2", "1"),
    ("maxf 1 2.5", "2.5"),
    ("minf 1 2.5", "1"),
    ("addf 1.5 2", "3.5"),
    ("add1f 1.5", "2.5"),
    ("subf 5 1.5", "3.5"),
    ("mulf 2 1.5", "3"),
    ("divf 3 2", "1.5"),
    ("floor 1.9", "1"),
    ("ceil 1.1", "2"),
    ("round 123.5555 2", "123.56"),
    ("mod -7 2", "-1"),
    ("until -2", "[0 -1]"),
    ("untilStep 0 10 5", "[0 5]"),
    ("untilStep 0 10 0", "[]"),
    ("seq 3", "1 2 3"),
    ("seq 0 2 5", "0 2 4"),
    ("seq 2 0", "2 1 0"),
    ("all 1 true", "true"),
    ('any "" 0', "false"),
    ("kindOf .l", "slice"),
    ("kindOf .d", "map"),
    ("kindOf .t", "struct"),
    ('kindIs "string" "x"', "true"),
    ('typeOf "x"', "string"),
    ("deepEqual (list 1) (list 1)", "true"),
    ('date "2006-01-02 15:04:05.000 MST" .t', "2024-03-05 14:07:09.120 UTC"),
    ('date "Monday, _2 Jan 06 3:04pm -0700 Z07:00" .t', "Tuesday,  5 Mar 24 2:07pm +0000 Z"),
    ('dateInZone "15:04 -07:00" .t "Asia/Tokyo"', "23:07 +09:00"),
    ('dateInZone "15:04" .t "No/Where"', "14:07"),
    ("htmlDate .t", "2024-03-05"),
    ("unixEpoch .t", "1709647629"),
    ("len uuidv4", "36"),
    ("len (randAlphaNum 12)", "12"),
    ("now | kindOf", "struct"),
    ('env "HOME"', ""),
    ('expandenv "a $HOME b ${HOME}c $1$$ $"', "a  b c  $"),
    ("last .l", "2"),
    ("rest .l", "[1 2]"),
    ("initial .l", "[3 1]"),
    ("append .l 9", "[3 1 2 9]"),
    ("prepend .l 9", "[9 3 1 2]"),
    ("concat .l (list 4)", "[3 1 2 4]"),
    ("reverse .l", "[2 1 3]"),
    ('compact (list 0 "a" "")', "[a]"),
    ("chunk 2 .l", "[[3 1] [2]]"),
    ("first .none", "<no value>"),
    ("slice .l 1 2", "[1]"),
    ('dict "a"', "map[a:]"),
    ('get .d "x"', ""),
    ('hasKey .d "a"', "true"),
    ('unset (dict "a" 1 "b" 2) "a"', "map[b:2]"),
    ('pluck "a" .d (dict "a" 2)', "[1 2]"),
    ("values (dict \"a\" 1)", "[1]"),
    ('pick .d "a"', "map[a:1]"),
    ('omit .d "b"', "map[a:1]"),
    ('merge (dict "a" 1) (dict "a" 2 "b" 3)', "map[a:1 b:3]"),
    ('mergeOverwrite (dict "a" 1) (dict "a" 2 "b" 3)', "map[a:2 b:3]"),
    ('merge (dict "m" (dict "x" 1)) (dict "m" (dict "y" 2))', "map[m:map[x:1 y:2]]"),
    ('dig "b" "c" "none" .d', "deep"),
    ('dig "b" "x" "none" .d', "none"),
    ("deepCopy .d", "map[a:1 b:map[c:deep]]"),
    ('b32enc "a" | b32dec', "a"),
    ('"!" | b64dec | empty', "false"),
    ('toRawJson "<a>"', '"<a>"'),
    ('toJson "<a>"', '"\\u003ca\\u003e"'),
    ('toPrettyJson (dict "a" 1)', '{\n  "a": 1\n}'),
    ('fromJson "{" | empty', "true"),
    ('sha1sum "x" | trunc 4', "11f6"),
    ('md5sum "x" | trunc 4', "9dd4"),
    ('adler32sum "x"', "7929977"),
    ('printf "%+d %x %X %o %b %c %U %08.3f %e %g" 5 "hi" 255 8 5 65 65 3.14159 1.5 1.5', "+5 6869 FF 10 101 A U+0041 0003.142 1.500000e+00 1.5"),
    ('printf "%6.2f|%-6d|%#v|%T|%*d" 1.234 7 "q" .l 4 7', '  1.23|7     |"q"|[]interface {}|   7'),
    ('printf "%s %v %d" true nil 1.5', "%!s(bool=true) <nil> %!d(float64=1.5)"),
    ('printf "%q" "tab\\t\\x01é\\u200b"', '"tab\\t\\x01é\\u200b"'),
    ('js "it\'s <b>"', "it\\'s \\u003Cb\\u003E"),
    ("println 1 2 | trim", "1 2"),
    ("index .bytes 1", "98"),
    ('index "ab" 0', "97"),
    (".bytes", "[97 98]"),
    (".t", "2024-03-05 14:07:09.12 +0000 UTC"),
]  # fmt: skip


@pytest.mark.parametrize(("expression", "expected"), CASES, ids=[case[0] for case in CASES])
def test_a_function_returns(expression: str, expected: str) -> None:
    assert render("{{ " + expression + " }}", DATA, name="t") == expected


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("chunk 0 .l", "size of a chunk"),
        ('dig "a" 1', "at least three"),
        ("first 5", "a list is needed"),
        ("randAlphaNum -1", "out of range"),
        ('mustFromJson "{"', "not JSON"),
        ('indent -1 "a"', "out of range"),
        ("len 5", "len of type int"),
        ('index .none "a"', "index of untyped nil"),
        ('index .l "a"', "cannot index slice/array with type string"),
        ("index 5 1", "can't index item"),
        ('slice "abc" 2 1', "invalid slice index"),
        ("slice 5 1", "can't slice"),
        ("lt .d 1", "non-comparable"),
        ("eq 1", "missing argument"),
    ],
)
def test_wrong_arguments_are_reported(expression: str, message: str) -> None:
    with pytest.raises(TemplateMistake) as caught:
        render("{{ " + expression + " }}", DATA, name="t")
    assert message in str(caught.value)


def test_templates_see_only_the_named_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "of-piped")
    template = '{{ env "REGION" }} {{ env "TOKEN" }} {{ expandenv "$REGION ${REGION}1 $TOKEN" }}'
    rendered = render(template, {}, name="t", variables={"REGION": "tokyo"})
    assert rendered == "tokyo  tokyo tokyo1 "


def test_any_arguments_render_or_raise_template_mistake() -> None:
    values = ['"a"', "1", "-1", "1.5", ".l", ".d", ".none", ".t", "true"]
    for name in sorted(FUNCTIONS):
        for value in values:
            for arguments in (value, f"{value} {value}", f"{value} {value} {value}"):
                try:
                    render("{{ " + f"{name} {arguments}" + " }}", {**DATA, "d": {"a": 1}}, name="t")
                except TemplateMistake as e:
                    assert str(e).startswith("template: t:1:")
