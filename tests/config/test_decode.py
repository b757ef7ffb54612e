# SPDX-License-Identifier: Apache-2.0
"""Values are decoded by the rules of upstream, and all mistakes are reported together."""

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self

import pytest
from pydantic import Field, field_validator, model_validator

from pipecd.config.decode import Decoder, Level, decode_plain
from pipecd.config.report import ConfigMistake, Mistake, Report
from pipecd.config.spec import Advice, Spec, refuse
from pipecd.config.units import Duration
from pipecd.config.yaml_tree import read_yaml


class Inner(Spec):
    """A nested spec."""

    word: str = "default"
    number: int = 3
    share: float = 0.5
    flag: bool = True
    limit: float | None = None
    wait: Duration = Duration(60)

    @field_validator("word")
    @classmethod
    def _short(cls, word: str) -> str:
        if len(word) > 10:
            raise ValueError("must be at most 10 letters")
        return word

    def advice(self) -> Iterator[Advice]:
        if self.number > 100:
            yield Advice(("number",), "is rather much")


class Outer(Spec):
    """A spec with a field of every type."""

    project_id: Annotated[str, Field(alias="projectID")] = ""
    inner: Inner = Inner()
    maybe: Inner | None = None
    words: tuple[str, ...] = ()
    parts: tuple[Inner, ...] = ()
    table: Mapping[str, str] = Field(default_factory=dict[str, str])
    named: Mapping[str, Inner] = Field(default_factory=dict[str, Inner])
    free: Any = None
    size: Literal["SMALL", "LARGE"] = "SMALL"

    @model_validator(mode="after")
    def _rules(self) -> Self:
        refuse(
            self,
            (self.project_id == "both", "projectID", "both is no project"),
            ("wrong" in self.table, ("table", "wrong"), "this entry is wrong"),
        )
        return self


def decode(
    text: str, *, unknown: Level = Level.WARNING, wrong: Level = Level.MISTAKE
) -> tuple[Outer | None, Report]:
    decoder = Decoder("f.yaml")
    value = decoder.decode(read_yaml(text), Outer, unknown=unknown, wrong=wrong)
    return value, decoder.report


def mistakes(text: str, *, unknown: Level = Level.WARNING) -> list[str]:
    value, report = decode(text, unknown=unknown)
    assert (value is None) == bool(report.mistakes)
    return [str(mistake) for mistake in report.mistakes]


def value(text: str) -> Outer:
    read, report = decode(text)
    assert report == Report()
    assert read is not None
    return read


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("", Outer(), id="an empty object has the defaults"),
        pytest.param("projectID: a", Outer(project_id="a"), id="the exact key"),
        pytest.param("PROJECTid: a", Outer(project_id="a"), id="a key in any case"),
        pytest.param("projectid: low\nProjectID: up", Outer(project_id="low"), id="the spelling last in byte order wins"),
        pytest.param("projectID: ~\ninner: ~\nwords: ~\ntable: ~\nmaybe: ~", Outer(), id="null is the same as absent"),
        pytest.param("inner: {word: '', number: 0, share: 0, wait: 0s}", Outer(), id="zero means the default"),
        pytest.param("inner: {wait: 0}", Outer(), id="zero nanoseconds mean the default"),
        pytest.param("inner: {flag: no}", Outer(inner=Inner(flag=False)), id="false stays false"),
        pytest.param("inner: {limit: 0}", Outer(inner=Inner(limit=0.0)), id="zero stays where absence has no default"),
        pytest.param("maybe: {}", Outer(maybe=Inner()), id="an empty object is not absent"),
        pytest.param("words: [a, ~, b]", Outer(words=("a", "", "b")), id="null in a list of strings is empty"),
        pytest.param("parts: [~, {number: 4}]", Outer(parts=(Inner(), Inner(number=4))), id="null in a list of objects has the defaults"),
        pytest.param("table: {a: ~}", Outer(table={"a": ""}), id="null in a map is empty"),
        pytest.param("table: {A: x, a: z}", Outer(table={"A": "x", "a": "z"}), id="keys of a map keep their case"),
        pytest.param("named: {x: {NUMBER: 4}}", Outer(named={"x": Inner(number=4)}), id="objects in a map"),
        pytest.param("size: ''", Outer(), id="an empty choice means the default"),
        pytest.param("size: LARGE", Outer(size="LARGE"), id="an allowed word"),
        pytest.param("free: {a: [1, ~]}", Outer(free={"a": [1, None]}), id="a field of any type is unchanged"),
    ],
)  # fmt: skip
def test_values_are_decoded_by_type(text: str, expected: Outer) -> None:
    assert value(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("projectID: 5", ["f.yaml:1:12: projectID: must be a string, not a number, put it in quotes"], id="a number for a string"),
        pytest.param("projectID: yes", ["f.yaml:1:12: projectID: must be a string, not a boolean, put it in quotes"], id="a boolean for a string"),
        pytest.param("inner:\n  flag: 'yes'", ["f.yaml:2:9: inner.flag: must be true or false, not a string, write it without quotes"], id="a string for a boolean"),
        pytest.param("inner: {number: 1.5}", ["f.yaml:1:17: inner.number: must be a whole number, not a fraction"], id="a fraction for a whole number"),
        pytest.param("inner: {number: yes}", ["f.yaml:1:17: inner.number: must be a whole number, not a boolean"], id="a boolean for a number"),
        pytest.param("inner: {share: '1'}", ["f.yaml:1:16: inner.share: must be a number, not a string, write it without quotes"], id="a string for a fraction"),
        pytest.param("inner: {number: 9223372036854775808}", ["f.yaml:1:17: inner.number: is too large for a whole number"], id="more than 64 bits"),
        pytest.param("inner: []", ["f.yaml:1:8: inner: must be an object, not a list"], id="a list for an object"),
        pytest.param("words: a", ["f.yaml:1:8: words: must be a list, not a string, begin each item with a dash"], id="a string for a list"),
        pytest.param("words: {a: b}", ["f.yaml:1:8: words: must be a list, not an object"], id="an object for a list"),
        pytest.param("table: [a]", ["f.yaml:1:8: table: must be an object, not a list"], id="a list for a map"),
        pytest.param("words: [a, 5]", ["f.yaml:1:12: words[1]: must be a string, not a number, put it in quotes"], id="a number in a list of strings"),
        pytest.param("named: {x: {number: a}}", ["f.yaml:1:21: named.x.number: must be a whole number, not a string, write it without quotes"], id="inside a map"),
        pytest.param("inner: {wait: ~}", ["f.yaml:1:15: inner.wait: invalid duration: null, leave it out or write a value"], id="null for a duration"),
        pytest.param("inner: {word: twelve letters}", ["f.yaml:1:15: inner.word: must be at most 10 letters"], id="a rule of one field"),
        pytest.param("projectID: both\ntable: {wrong: x}", ["f.yaml:1:12: projectID: both is no project", "f.yaml:2:16: table.wrong: this entry is wrong"], id="several rules of one object"),
        pytest.param("size: HUGE", ['f.yaml:1:7: size: must be "SMALL" or "LARGE"'], id="a word that is not allowed"),
        pytest.param("- a", ["f.yaml:1:1: must be an object, not a list"], id="a list for the whole object"),
    ],
)  # fmt: skip
def test_an_invalid_value_is_reported_with_its_position(text: str, message: list[str]) -> None:
    assert mistakes(text) == message


def test_all_mistakes_of_a_file_are_reported_in_the_order_of_lines() -> None:
    text = "table: {a: 1}\nprojektID: x\ninner:\n  wait: 5\n  wiat: 3s\nparts:\n  - number: x\n    wait: 1d\n"
    assert mistakes(text, unknown=Level.MISTAKE) == [
        "f.yaml:1:12: table.a: must be a string, not a number, put it in quotes",
        'f.yaml:2:1: projektID: unknown field, did you mean "projectID"?',
        'f.yaml:5:3: inner.wiat: unknown field, did you mean "wait"?',
        "f.yaml:7:13: parts[0].number: must be a whole number, not a string, write it without quotes",
        'f.yaml:8:11: parts[0].wait: unknown unit "d" in duration "1d", use one of ns us ms s m h',
    ]


def test_the_reader_decides_the_severity_of_unknown_keys() -> None:
    _, lenient = decode("foo: 1\nprojectID: a")
    assert lenient == Report(warnings=(Mistake("f.yaml", 1, 1, "foo", "unknown field"),))
    _, silent = decode("foo: 1", unknown=Level.IGNORED)
    assert silent == Report()
    strict, report = decode("foo: 1\nprojectID: a", unknown=Level.MISTAKE)
    assert strict == Outer(project_id="a")
    assert [m.what for m in report.mistakes] == ["unknown field"]


def test_invalid_values_may_be_warnings_only() -> None:
    read, report = decode("inner: 5", wrong=Level.WARNING)
    assert read is None
    assert report.mistakes == ()
    assert [str(w) for w in report.warnings] == [
        "f.yaml:1:8: inner: must be an object, not a number"
    ]


def test_advice_is_a_warning_with_its_position() -> None:
    read, report = decode("parts:\n  - {}\n  - number: 101")
    assert read is not None
    assert [str(w) for w in report.warnings] == ["f.yaml:3:13: parts[1].number: is rather much"]


def test_the_python_name_of_a_field_is_an_unknown_key() -> None:
    read, report = decode("project_id: x")
    assert read == Outer()
    assert [w.what for w in report.warnings] == ['unknown field, did you mean "projectID"?']


def test_plain_values_are_decoded_by_the_same_rules() -> None:
    assert decode_plain({"PROJECTID": "a", "inner": None}, Outer, what="x") == Outer(project_id="a")
    assert decode_plain(None, Outer, what="x") == Outer()


@pytest.mark.parametrize(
    "given",
    [
        {"free": float("nan")},
        {"free": object()},
        {"free": {1: 2}},
        {"free": json.loads("[" * 500 + "]" * 500)},
    ],
    ids=["no number", "an object of Python", "a key that is no text", "values nested too deep"],
)
def test_plain_values_that_json_cannot_represent_are_refused(given: object) -> None:
    with pytest.raises(ConfigMistake):
        decode_plain(given, Outer, what="the options of stage X")


def test_a_mistake_in_plain_values_has_no_line() -> None:
    with pytest.raises(ConfigMistake) as caught:
        decode_plain({"inner": {"number": "x"}}, Outer, what="the options of stage X")
    assert str(caught.value).startswith(
        "the options of stage X: inner.number: must be a whole number"
    )


def test_a_mistake_does_not_repeat_a_secret() -> None:
    message = "\n".join(mistakes("projectID: [hunter2]\ntable: {a: [hunter2]}\nsize: hunter2"))
    assert len(message.splitlines()) == 3
    assert "hunter2" not in message
