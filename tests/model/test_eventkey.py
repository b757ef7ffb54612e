# SPDX-License-Identifier: Apache-2.0
"""Event keys."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecd.model.eventkey import event_key

VECTORS = Path(__file__).parent.parent / "spec" / "vectors"
KEYS = json.loads((VECTORS / "auth.json").read_text())["event_key"]
EVENT = next(
    d
    for d in json.loads((VECTORS / "mysql_documents.json").read_text())["documents"]
    if d["table"] == "Event"
)


@pytest.mark.parametrize("vector", [*KEYS, json.loads(EVENT["data_json"])])
def test_keys_are_those_of_upstream(vector: Any) -> None:
    assert event_key(vector["name"], vector["labels"]) == vector["event_key"]


@given(st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=4), st.randoms())
def test_the_order_of_labels_does_not_matter(labels: dict[str, str], random: Any) -> None:
    shuffled = list(labels.items())
    random.shuffle(shuffled)
    assert event_key("n", dict(shuffled)) == event_key("n", labels)
