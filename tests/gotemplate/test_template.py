# SPDX-License-Identifier: Apache-2.0
"""Templates render as Go's text/template with sprig renders them."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecd.gotemplate.nodes import TemplateMistake
from pipecd.gotemplate.template import render

DATA: dict[str, Any] = {
    "encryptedSecrets": {"password": 'p"ss', "with-dash": "d"},
    "attachment": {"config": "a: 1\nb: 2"},
    "n": 3,
    "f": 1.5,
    "yes": True,
    "list": ["a", "b", "c"],
    "map": {"z": 1, "a": 2},
    "none": None,
}


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        pytest.param("plain", "plain", id="text without actions"),
        pytest.param("", "", id="an empty template"),
        pytest.param("x: {{ .encryptedSecrets.password }}", 'x: p"ss', id="a field of a field"),
        pytest.param('{{ index .encryptedSecrets "with-dash" }}', "d", id="index reaches any key"),
        pytest.param("{{ .attachment.config | indent 2 }}", "  a: 1\n  b: 2", id="a pipe"),
        pytest.param("{{ quote .encryptedSecrets.password }}", '"p\\"ss"', id="sprig's quote"),
        pytest.param("a {{- 1 -}} b", "a1b", id="white space is trimmed"),
        pytest.param("a {{ 1 }} b", "a 1 b", id="white space is kept without a hyphen"),
        pytest.param("{{-3}}", "-3", id="a minus without a space is a number"),
        pytest.param("a{{/* gone */}}b", "ab", id="a comment"),
        pytest.param("a {{- /* gone */ -}} b", "ab", id="a comment that trims"),
        pytest.param('{{ "}}" }}', "}}", id="braces inside a string"),
        pytest.param("{{ `raw\\n` }}", "raw\\n", id="a raw string"),
        pytest.param('{{ "a\\tb\\u00e9" }}', "a\tbé", id="escapes"),
        pytest.param(
            "{{ 'a' }} {{ 0x1F }} {{ 010 }} {{ 1_000 }} {{ 1e3 }}",
            "97 31 8 1000 1000",
            id="numbers",
        ),
        pytest.param("{{ if .yes }}y{{ else }}n{{ end }}", "y", id="if"),
        pytest.param(
            "{{ if .none }}y{{ else if eq .n 3 }}three{{ else }}n{{ end }}", "three", id="else if"
        ),
        pytest.param("{{ range .list }}[{{ . }}]{{ end }}", "[a][b][c]", id="range over a list"),
        pytest.param(
            "{{ range $i, $v := .list }}{{ $i }}{{ $v }}{{ end }}",
            "0a1b2c",
            id="range with both variables",
        ),
        pytest.param(
            "{{ range $k, $v := .map }}{{ $k }}={{ $v }} {{ end }}",
            "a=2 z=1 ",
            id="maps in order of keys",
        ),
        pytest.param(
            "{{ range .none }}x{{ else }}empty{{ end }}", "empty", id="range over nothing"
        ),
        pytest.param("{{ range 3 }}{{ . }}{{ end }}", "012", id="range over a number"),
        pytest.param(
            '{{ range .list }}{{ if eq . "b" }}{{ continue }}{{ end }}{{ . }}{{ end }}',
            "ac",
            id="continue",
        ),
        pytest.param(
            '{{ range .list }}{{ if eq . "b" }}{{ break }}{{ end }}{{ . }}{{ end }}',
            "a",
            id="break",
        ),
        pytest.param(
            "{{ with .map }}{{ .a }}{{ $.n }}{{ end }}", "23", id="with, and the root by $"
        ),
        pytest.param("{{ with .none }}x{{ else }}no{{ end }}", "no", id="with nothing"),
        pytest.param(
            "{{ $x := 1 }}{{ if true }}{{ $x = 2 }}{{ end }}{{ $x }}",
            "2",
            id="assignment changes the outer variable",
        ),
        pytest.param(
            "{{ $x := 1 }}{{ if true }}{{ $x := 2 }}{{ end }}{{ $x }}",
            "1",
            id="declaration does not change the outer variable",
        ),
        pytest.param(
            '{{ define "t" }}<{{ . }}>{{ end }}{{ template "t" .n }}',
            "<3>",
            id="a defined template",
        ),
        pytest.param('{{ block "t" .n }}<{{ . }}>{{ end }}', "<3>", id="a block"),
        pytest.param(
            '{{ (index .list 1) }}{{ (dict "a" (list 1 2)).a }}', "b[1 2]", id="parentheses"
        ),
        pytest.param("{{ and .yes .n }} {{ or .none 5 }} {{ not .yes }}", "3 5 false", id="logic"),
        pytest.param(
            '{{ or .yes (fail "not reached") }}', "true", id="or stops at the first true argument"
        ),
        pytest.param(
            '{{ lt 1 2 }} {{ ge 2 2 }} {{ ne "a" "b" }} {{ eq .n 1 2 3 }}',
            "true true true true",
            id="comparisons",
        ),
        pytest.param(
            '{{ len .list }} {{ len "é" }} {{ slice "abcd" 1 3 }}', "3 2 bc", id="lengths are bytes"
        ),
        pytest.param(
            "{{ .list }} {{ .map }} {{ .f }} {{ .yes }}",
            "[a b c] map[a:2 z:1] 1.5 true",
            id="values print as in Go",
        ),
        pytest.param("{{ .none }}", "<no value>", id="nil prints"),
        pytest.param(
            "{{ 1e21 }} {{ 1.0 }} {{ 0.000001 }} {{ 1234567.5 }}",
            "1e+21 1 1e-06 1234567.5",
            id="floats print as in Go",
        ),
        pytest.param(
            '{{ printf "%05d|%-4s|%4s|%q|%v|%.2f|%x|%t|%%" 42 "a" "b" "c" .list 1.005 255 true }}',
            '00042|a   |   b|"c"|[a b c]|1.00|ff|true|%',
            id="printf",
        ),
        pytest.param(
            '{{ printf "%d" "x" }} {{ printf "%s" }} {{ printf "x" 1 }}',
            "%!d(string=x) %!s(MISSING) x%!(EXTRA int=1)",
            id="printf marks bad arguments as Go does",
        ),
        pytest.param('{{ print 1 2 "a" 3 }}', "1 2a3", id="print"),
        pytest.param('{{ html "<a>" }} {{ urlquery "a b" }}', "&lt;a&gt; a+b", id="escaping"),
        pytest.param(
            '{{ default "x" .none }} {{ "" | default "y" }} {{ .n | default 1 }}',
            "x y 3",
            id="default",
        ),
        pytest.param('{{ b64enc "hi" }} {{ "aGk=" | b64dec }}', "aGk= hi", id="base64"),
        pytest.param(
            '{{ "a,b" | splitList "," | join "-" }} {{ (split "," "a,b")._1 }}',
            "a-b b",
            id="splitting",
        ),
        pytest.param(
            '{{ upper "a" }}{{ lower "B" }}{{ title "ab cd" }}{{ trim " x " }}',
            "AbAb Cdx",
            id="cases",
        ),
        pytest.param(
            '{{ trunc 3 "abcdef" }} {{ trunc -2 "abcdef" }} {{ substr 1 3 "abcdef" }}',
            "abc ef bc",
            id="substrings",
        ),
        pytest.param('{{ nindent 2 "a\\nb" }}', "\n  a\n  b", id="nindent"),
        pytest.param(
            "{{ add 1 2 3 }} {{ sub 5 2 }} {{ mul 2 3 }} {{ div 7 2 }} {{ mod 7 2 }} {{ div -7 2 }}",
            "6 3 6 3 1 -3",
            id="arithmetic",
        ),
        pytest.param(
            '{{ toJson .map }} {{ (fromJson "{\\"a\\":[1]}").a }}', '{"a":2,"z":1} [1]', id="JSON"
        ),
        pytest.param(
            '{{ regexReplaceAll "a(x*)b" "-ab-axxb-" "${1}W" }}',
            "-W-xxW-",
            id="regular expressions with groups",
        ),
        pytest.param('{{ sha256sum "x" | trunc 8 }}', "2d711642", id="digests"),
        pytest.param(
            '{{ ternary "a" "b" true }} {{ coalesce "" nil 3 }} {{ empty 0 }}',
            "a 3 true",
            id="ternary, coalesce and empty",
        ),
        pytest.param(
            '{{ $d := dict "a" 1 }}{{ $_ := set $d "b" 2 }}{{ keys $d | sortAlpha | join "," }}',
            "a,b",
            id="dictionaries",
        ),
        pytest.param(
            "{{ list 1 2 2 | uniq | first }} {{ has 2 (list 1 2) }} {{ without (list 1 2) 1 }}",
            "1 true [2]",
            id="lists",
        ),
        pytest.param(
            '{{ snakecase "FirstName" }} {{ kebabcase "FirstName" }} {{ camelcase "first_name" }}',
            "first_name first-name FirstName",
            id="snake, kebab and camel case",
        ),
        pytest.param(
            '{{ date "2006-01-02" 0 }} {{ dateInZone "15:04" 0 "UTC" }}',
            "1970-01-01 00:00",
            id="dates",
        ),
        pytest.param(
            "{{ range $i, $e := until 3 }}{{ $i }}{{ end }}{{ seq 1 3 }}",
            "0121 2 3",
            id="until and seq",
        ),
    ],
)
def test_a_template_renders_as_in_go(template: str, expected: str) -> None:
    assert render(template, DATA, name="t") == expected


@pytest.mark.parametrize(
    ("template", "message"),
    [
        pytest.param(
            "{{ .encryptedSecrets.other }}", "map has no entry for key 'other'", id="a missing key"
        ),
        pytest.param(
            "a\n\n{{ .nothing }}",
            "template: f.yaml:3: map has no entry",
            id="the line is in the message",
        ),
        pytest.param("{{ .n.x }}", "can't evaluate field x in type int", id="a field of a number"),
        pytest.param("{{ .none.x }}", "nil pointer evaluating", id="a field of nil"),
        pytest.param("{{ .n", "unclosed action", id="an unclosed action"),
        pytest.param('{{ "x }}', "unterminated quoted string", id="an unterminated string"),
        pytest.param("{{ if .n }}", "{{if}} is not closed", id="an if without end"),
        pytest.param("{{ end }}", "unexpected {{end}}", id="an end without if"),
        pytest.param("{{ else }}", "unexpected {{else}}", id="an else without if"),
        pytest.param("{{ nosuch 1 }}", "function 'nosuch' not defined", id="an unknown function"),
        pytest.param("{{ $x }}", "undefined variable '$x'", id="an unknown variable"),
        pytest.param('{{ template "x" }}', "template 'x' not defined", id="an unknown template"),
        pytest.param(
            '{{ fail "my reason" }}', "error calling fail: my reason", id="fail has its message"
        ),
        pytest.param("{{ div 1 0 }}", "division by zero", id="a division by zero"),
        pytest.param('{{ eq 1 "1" }}', "incompatible types", id="comparing different types"),
        pytest.param("{{ index .list 9 }}", "index out of range: 9", id="an index too high"),
        pytest.param(
            "{{ upper }}", "wrong arguments for upper", id="a function without its argument"
        ),
        pytest.param("{{ upper 1 }}", "error calling upper", id="a number for a string"),
        pytest.param("{{ 1 | 2 }}", "may follow |", id="a pipe into a number"),
        pytest.param("{{ .n 3 }}", "can't give argument", id="arguments for a field"),
        pytest.param(
            '{{ define "a" }}{{ template "a" }}{{ end }}{{ template "a" }}',
            "maximum template depth",
            id="endless recursion",
        ),
        pytest.param("{{ break }}", "outside {{range}}", id="break outside"),
        pytest.param("{{ until 1000000000 }}", "out of range", id="a list that fills the memory"),
        pytest.param(
            '{{ repeat 1000000000 "x" }}', "out of range", id="a string that fills the memory"
        ),
        pytest.param("{{}}", "missing value", id="an empty action"),
        pytest.param(
            '{{ regexMatch "(" "x" }}', "error parsing regexp", id="an invalid regular expression"
        ),
    ],
)
def test_a_mistake_is_reported_with_template_and_line(template: str, message: str) -> None:
    with pytest.raises(TemplateMistake) as caught:
        render(template, DATA, name="f.yaml")
    assert message in str(caught.value)
    assert str(caught.value).startswith("template: f.yaml:")


@given(st.text())
def test_text_without_braces_is_unchanged(text: str) -> None:
    clean = text.replace("{{", "{ {")
    assert render(clean, {}, name="t") == clean


@given(st.text())
def test_a_string_is_rendered_unchanged(text: str) -> None:
    assert render("{{ .a.b }}", {"a": {"b": text}}, name="t") == text
    assert render("{{ .a | b64enc | b64dec }}", {"a": text}, name="t") == text


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda v: st.lists(v) | st.dictionaries(st.text(), v),
        max_leaves=8,
    )
)
def test_json_survives_a_round_trip(value: Any) -> None:
    assert json.loads(render("{{ .v | toJson }}", {"v": value}, name="t")) == value


@given(st.text('{}-. |()"$=:a1\n', max_size=30))
def test_any_text_renders_or_raises_template_mistake(text: str) -> None:
    try:
        render(text, {"a": 1}, name="t")
    except TemplateMistake as e:
        assert str(e).startswith("template: t")
