# SPDX-License-Identifier: Apache-2.0
"""Reading any file returns a value or raises ConfigMistake."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipecd.config.application import ApplicationSpec, EventWatcherFileSpec
from pipecd.config.catalog import Catalog, load_catalog
from pipecd.config.controlplane import ControlPlaneSpec
from pipecd.config.decode import fields_of
from pipecd.config.piped import PipedSpec
from pipecd.config.read import (
    ConfigMistake,
    Generation,
    read_application,
    read_control_plane,
    read_file,
    read_kind,
    read_piped,
)
from pipecd.config.schema import kinds_of

CATALOG = load_catalog()
KEYS = sorted({*fields_of(ApplicationSpec), *fields_of(PipedSpec), *fields_of(ControlPlaneSpec)})
WORDS = [*KEYS, "input", "stages", "name", "with", "chain", "config", "type", "<<", "", "é"]
SCALARS: st.SearchStrategy[Any] = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["10%", "1h", "KUBERNETES", *CATALOG.v0_stages, *CATALOG.stages])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=5)
    ),
    max_leaves=25,
)


@settings(max_examples=300)
@given(
    st.sampled_from([*kinds_of(CATALOG), "Foo", "", 5]),
    VALUES,
    st.sampled_from(Generation),
    st.integers(0, 400),
)
def test_any_values_of_any_kind_are_read_or_refused(
    kind: str, spec: Any, reader: Generation, cut: int
) -> None:
    text = json.dumps({"apiVersion": "pipecd.dev/v1beta1", "kind": kind, "spec": spec})
    for written in (text, text[:cut]):
        try:
            read_file(written, file="f.yaml", catalog=CATALOG, reader=reader)
        except ConfigMistake as e:
            assert e.report.mistakes
            assert str(e).startswith("f.yaml:")


@given(st.text() | st.binary())
def test_any_text_is_refused(text: str | bytes) -> None:
    with pytest.raises(ConfigMistake):
        read_file(text, file="f.yaml", catalog=CATALOG)


def test_mistakes_of_envelope_and_spec_are_reported_together(catalog: Catalog) -> None:
    with pytest.raises(ConfigMistake) as caught:
        read_application("apiVersion: v1\nkind: KubernetesApp\nspec: {name: 5}", file="a.yaml", catalog=catalog)  # fmt: skip
    assert str(caught.value).splitlines() == [
        "a.yaml:1:13: apiVersion: unsupported version: v1, write pipecd.dev/v1beta1",
        "a.yaml:3:14: spec.name: must be a string, not a number, put it in quotes",
    ]


def test_wrong_types_in_the_envelope_are_reported_once(catalog: Catalog) -> None:
    with pytest.raises(ConfigMistake) as caught:
        read_application("apiVersion: 5\nkind: [x]", file="a.yaml", catalog=catalog)
    assert str(caught.value).splitlines() == [
        "a.yaml:1:13: apiVersion: must be a string, not a number, put it in quotes",
        "a.yaml:2:7: kind: must be a string, not a list",
    ]


def test_the_report_of_a_whole_pipeline(catalog: Catalog) -> None:
    text = Path(__file__).with_name("mistakes.pipecd.yaml").read_text()
    with pytest.raises(ConfigMistake) as caught:
        read_application(text, file="app.pipecd.yaml", catalog=catalog, reader=Generation.V0)
    assert str(caught.value).splitlines() == [
        'app.pipecd.yaml:5:3: spec.descripton: unknown field, did you mean "description"?',
        "app.pipecd.yaml:7:11: spec.labels.tier: must be a string, not a number, put it in quotes",
        "app.pipecd.yaml:9:19: spec.input.autoRollback: must be true or false, not a string, write it without quotes",
        'app.pipecd.yaml:10:5: spec.input.namspace: unknown field, did you mean "namespace"?',
        'app.pipecd.yaml:14:26: spec.pipeline.stages[0].with.replicas: invalid replicas "few", write a number such as 2 or a percentage such as 50%',
        'app.pipecd.yaml:15:15: spec.pipeline.stages[1].name: unsupported stage name: WIAT, did you mean "WAIT"?',
        "app.pipecd.yaml:19:9: spec.encryption.decryptionTargets: must not be empty, list the files that use the secrets",
    ]
    assert [str(warning) for warning in caught.value.report.warnings] == [
        'app.pipecd.yaml:16:9: spec.pipeline.stages[1].witth: unknown field, did you mean "with"?',
    ]


@pytest.mark.parametrize(
    ("reading", "message"),
    [
        (lambda text: read_piped(text, file="f", catalog=CATALOG), "write Piped"),
        (lambda text: read_control_plane(text, file="f"), "write ControlPlane"),
        (lambda text: read_application(text, file="f", catalog=CATALOG), "write one of Application"),
    ],
    ids=["piped", "control plane", "application"],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["", "kind: EventWatcher"], ids=["no kind", "another kind"])
def test_a_file_of_another_kind_is_refused(
    reading: Callable[[str], object], message: str, kind: str
) -> None:
    with pytest.raises(ConfigMistake, match=message):
        reading(f"apiVersion: pipecd.dev/v1beta1\n{kind}")


@pytest.mark.parametrize("text", ["[]", "5", "text"])
def test_a_file_that_is_not_an_object_is_refused(text: str, catalog: Catalog) -> None:
    with pytest.raises(ConfigMistake, match="must be an object with the keys apiVersion"):
        read_application(text, file="f", catalog=catalog)


def test_a_file_of_a_plugin_kind_is_read_by_its_type() -> None:
    head = "apiVersion: pipecd.dev/v1beta1\nkind: EventWatcher\nspec: {}"
    spec = read_kind(head, file="f", kind="EventWatcher", to=EventWatcherFileSpec)
    assert spec == EventWatcherFileSpec()
    assert read_kind(head, file="f", kind="AnalysisTemplate", to=EventWatcherFileSpec) is None
