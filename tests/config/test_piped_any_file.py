# SPDX-License-Identifier: Apache-2.0
"""Any piped or control plane file is read or refused with a ConfigMistake."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipecd.config.catalog import load_catalog
from pipecd.config.controlplane import ControlPlaneSpec
from pipecd.config.decode import fields_of
from pipecd.config.piped import PipedSpec, V0PipedSpec
from pipecd.config.piped_mask import masked
from pipecd.config.read import read_control_plane, read_piped
from pipecd.config.report import ConfigMistake

CATALOG = load_catalog()
PIPED_KEYS = sorted({*fields_of(PipedSpec), *fields_of(V0PipedSpec)})
CONTROL_PLANE_KEYS = sorted(fields_of(ControlPlaneSpec))
INNER_KEYS = (
    "name",
    "type",
    "config",
    "labels",
    "deployTargets",
    "url",
    "receivers",
    "slack",
    "routes",
    "gitRepos",
    "provider",
    "github",
    "client_id",
)
WORDS = ("", "a", "KUBERNETES", "KEY_PAIR", "MYSQL", "S3", "kubernetes", "https://x", "5m", "-1s")
SCALARS = st.none() | st.booleans() | st.integers(-1, 70000) | st.sampled_from(WORDS)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(INNER_KEYS), inner, max_size=4)
    ),
    max_leaves=12,
)
IDENTITY = {"projectID": "p", "pipedID": "i", "pipedKeyFile": "k", "apiAddress": "a"}


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.sampled_from(PIPED_KEYS), VALUES, max_size=4))
def test_a_piped_file_is_read_or_refused(spec: dict[str, object]) -> None:
    text = json.dumps(
        {"apiVersion": "pipecd.dev/v1beta1", "kind": "Piped", "spec": {**IDENTITY, **spec}}
    )
    try:
        read = read_piped(text, file="piped.yaml", catalog=CATALOG)
    except ConfigMistake as e:
        assert e.report.mistakes
    else:
        assert masked(read.spec)["projectID"]


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.sampled_from(CONTROL_PLANE_KEYS), VALUES, max_size=4))
def test_a_control_plane_file_is_read_or_refused(spec: dict[str, object]) -> None:
    stores = {
        "datastore": {"type": "SQLITE", "config": {"path": "a"}},
        "filestore": {"type": "LOCAL", "config": {"path": "a"}},
    }
    text = json.dumps(
        {"apiVersion": "pipecd.dev/v1beta1", "kind": "ControlPlane", "spec": {**stores, **spec}}
    )
    try:
        assert read_control_plane(text, file="cp.yaml").datastore.type
    except ConfigMistake as e:
        assert e.report.mistakes


@pytest.mark.parametrize("spec", ["a", 1, [], True], ids=repr)
def test_a_spec_that_is_not_an_object_is_refused(spec: object) -> None:
    for kind in ("Piped", "ControlPlane"):
        text = json.dumps({"apiVersion": "pipecd.dev/v1beta1", "kind": kind, "spec": spec})
        with pytest.raises(ConfigMistake):
            if kind == "Piped":
                read_piped(text, file="f.yaml", catalog=CATALOG)
            else:
                read_control_plane(text, file="f.yaml")
