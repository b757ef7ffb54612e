# SPDX-License-Identifier: Apache-2.0
"""Ids and the UUIDs of their rows."""

import json
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pipecd.model.ids import new_id, new_ordered_id, row_uuid

VECTORS = json.loads(
    (Path(__file__).parent.parent / "spec" / "vectors" / "mysql_documents.json").read_text()
)
ID = "f47ac10b-58cc-4372-a567-0e02b2c3d479"


def test_a_new_id_is_a_random_uuid_in_lower_case() -> None:
    first, second = new_id(), new_id()
    assert first != second
    assert uuid.UUID(first).version == 4
    assert str(uuid.UUID(first)) == first


def test_ids_can_have_the_order_of_their_moments() -> None:
    start = datetime(2026, 11, 15, 14, 59, 59, 998_990, UTC)
    moments = [start + timedelta(microseconds=n) for n in range(0, 3000, 7)]
    ids = [new_ordered_id(moment) for moment in moments]
    assert ids == sorted(ids)
    assert len(set(ids)) == len(ids)
    assert {(uuid.UUID(id).version, uuid.UUID(id).variant) for id in ids} == {(7, uuid.RFC_4122)}


@pytest.mark.parametrize(("id", "row"), VECTORS["row_ids"].items())
def test_rows_have_the_uuids_of_upstream(id: str, row: str) -> None:
    assert row_uuid(id) == uuid.UUID(row)


@pytest.mark.parametrize("document", VECTORS["documents"], ids=lambda d: d["table"])
def test_documents_have_the_row_uuids_of_upstream(document: dict[str, str]) -> None:
    assert row_uuid(document["id"]) == uuid.UUID(document["row_uuid"])


@pytest.mark.parametrize(
    ("id", "is_uuid"),
    [
        pytest.param(ID.upper(), True, id="upper case"),
        pytest.param(f"urn:uuid:{ID}", True, id="a URN"),
        pytest.param(f"{{{ID}}}", True, id="in braces"),
        pytest.param(ID.replace("-", ""), True, id="without dashes"),
        pytest.param("f47-ac10b58cc4372a5670e02b2c3d479", False, id="a dash in an odd place"),
        pytest.param(ID + " ", False, id="a space at the end"),
        pytest.param(ID + "\n", False, id="a line break at the end"),
        pytest.param(ID[:-1], False, id="too short"),
    ],
)
def test_only_the_forms_that_go_knows_are_uuids(id: str, is_uuid: bool) -> None:
    assert (row_uuid(id) == uuid.UUID(ID)) is is_uuid
