# SPDX-License-Identifier: Apache-2.0
"""Blocks and chunks: the bytes of upstream, every deployment once, counted correctly."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecd.controlplane.insight.applications import (
    ApplicationBook,
    CountedApplication,
    book_path,
    counted,
    counts,
    read_book,
    write_book,
)
from pipecd.controlplane.insight.chunks import (
    Block,
    Chunk,
    ChunkMeta,
    block_path,
    chunk_path,
    filled,
    read_block,
    read_chunk,
    read_ends,
    to_look_at,
    write_block,
    write_chunk,
    year_of,
    years_near,
)
from pipecd.controlplane.insight.decoding import decoded
from pipecd.controlplane.insight.finished import Ended, Finished, finished
from pipecd.controlplane.insight.gojson import go_json
from pipecd.model.deployment import DeploymentStatus
from pipecd.model.errors import PipecdError
from pipecd.proto.model import common_pb2 as common
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage

VECTORS = Path(__file__).parents[2] / "spec" / "vectors" / "storage_objects.json"
APP = "f47ac10b-58cc-4372-a567-0e02b2c3d479"
SUCCESS, FAILURE = DeploymentStatus.SUCCESS, DeploymentStatus.FAILURE
CANCELLED = DeploymentStatus.CANCELLED


def objects(ending: str) -> list[tuple[str, bytes]]:
    """Upstream's files whose path ends like this, in the order they were written."""
    kept: list[dict[str, Any]] = json.loads(VECTORS.read_text())
    return [(o["key"], o["value"].encode()) for o in kept if o["key"].endswith(ending)]


D1 = Finished("d1", APP, (), 1700000000, 1700000100, SUCCESS)
D2 = Finished("d2", APP, (("env", "dev"),), 1700000200, 1700000300, FAILURE, 1700000250)
D3 = Finished("d3", APP, (), 1700000400, 1700000500, CANCELLED)


def test_the_files_are_those_of_upstream_byte_for_byte() -> None:
    block, changed = filled(Block(2023), {}, [D1, D2, D3], most=2)
    written = {
        chunk_path("quickstart", 2023, meta): write_chunk(meta, changed[meta.index])
        for meta in block.chunks
    }
    assert written == dict(objects("chunk_0.json") + objects("chunk_1.json"))
    blocks = objects("block_meta.json")
    assert [
        (block_path("quickstart", 2023), write_block(b)) for b in (Block(2023), block)
    ] == blocks
    one = CountedApplication(APP, (), "KUBERNETES", "ENABLED")
    book = (book_path("quickstart"), write_book(ApplicationBook((one,), 1700000000)))
    assert [book] == objects("applications.json")


def test_files_of_upstream_are_read() -> None:
    empty, whole = (read_block(content, 2023) for _, content in objects("block_meta.json"))
    assert empty == Block(2023)
    assert [chunk.count for chunk in whole.chunks] == [2, 1]
    chunk = objects("chunk_0.json")[0][1]
    assert read_chunk(chunk) == (D1, D2)
    assert list(read_ends(chunk)) == [
        Ended(1700000100, APP, {}, is_failure=False),
        Ended(1700000300, APP, {"env": "dev"}, is_failure=True),
    ]
    book = read_book(objects("applications.json")[0][1])
    assert counts(book.applications) == {("KUBERNETES", "ENABLED"): 1}


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"{", id="half a file"),
        pytest.param(b"[]", id="a list"),
        pytest.param(b'{"deployments":[{}]}', id="a deployment without anything"),
        pytest.param(b'{"deployments":[1]}', id="a number in place of a deployment"),
    ],
)
def test_a_damaged_file_is_named(content: bytes) -> None:
    with pytest.raises(PipecdError, match="chunk_7"):
        decoded("insights/p/chunk_7.json", content, read_chunk)


def test_text_is_escaped_as_go_does() -> None:
    assert go_json({"a": "<b> & \u2028ü"}) == '{"a":"\\u003cb\\u003e \\u0026 \\u2028ü"}'.encode()


def one(id: str, completed_at: int) -> Finished:
    return Finished(id, APP, (), 0, completed_at, SUCCESS)


@given(
    ends=st.lists(st.integers(1, 60), max_size=30),
    cuts=st.lists(st.integers(0, 30), max_size=6),
    repeated=st.integers(0, 5),
    most=st.integers(1, 7),
)
def test_however_they_arrive_each_deployment_is_kept_once(
    ends: list[int], cuts: list[int], repeated: int, most: int
) -> None:
    new = [one(f"d{number}", at) for number, at in enumerate(ends)]
    edges = [0, *sorted(cut for cut in cuts if cut < len(new)), len(new)]
    block, files = Block(2023), dict[int, Chunk]()
    for start, end in pairwise(edges):
        batch = new[max(0, start - repeated) : end]
        known = {meta.index: files[meta.index] for meta in to_look_at(block, batch)}
        block, changed = filled(block, known, batch, most=most)
        files |= changed
    assert sorted(d.id for chunk in files.values() for d in chunk) == sorted(d.id for d in new)
    assert [len(files[meta.index]) for meta in block.chunks] == [m.count for m in block.chunks]
    assert all(meta.completed for meta in block.chunks[:-1])
    for meta in block.chunks:
        assert meta.completed == (meta.count == most)
        assert {meta.first, meta.last} <= {d.completed_at for d in files[meta.index]}


def test_a_chunk_written_just_before_a_crash_is_believed() -> None:
    # The block tells of one deployment and does not know that the chunk is full.
    block = Block(2023, (ChunkMeta(0, first=5, last=5, count=1, completed=False),))
    known = {0: (one("a", 5), one("b", 6))}
    grown, changed = filled(block, known, [one("b", 6), one("c", 7)], most=2)
    assert changed == {1: (one("c", 7),)}
    assert [(m.count, m.completed) for m in grown.chunks] == [(2, True), (1, False)]


def test_chunks_are_chosen_by_time() -> None:
    early, late = ChunkMeta(0, 10, 20, 2, completed=True), ChunkMeta(1, 21, 30, 2, completed=False)
    block = Block(2023, (early, late))
    assert block.between(20, 20) == (early,)
    assert block.between(0, 9) == ()
    assert to_look_at(block, [one("a", 15)]) == (early, late)
    assert to_look_at(block, [one("a", 25)]) == (late,)
    assert to_look_at(block, []) == (late,)


def test_years_are_those_of_utc_and_the_neighbours_are_looked_into() -> None:
    new_year = 1704067200
    assert (year_of(new_year - 1), year_of(new_year)) == (2023, 2024)
    assert list(years_near(new_year, new_year + 10)) == [2023, 2024]
    assert list(years_near(0, 1)) == [1970]


@pytest.mark.parametrize(
    ("status", "completed_at", "kept"),
    [
        pytest.param(SUCCESS, 9, True, id="a success"),
        pytest.param(CANCELLED, 9, True, id="a cancelled one"),
        pytest.param(DeploymentStatus.RUNNING, 9, False, id="not while it runs"),
        pytest.param(SUCCESS, 0, False, id="not without the time of its end"),
        pytest.param(77, 9, False, id="not in a state nobody knows"),
    ],
)
def test_what_is_remembered(status: int, completed_at: int, kept: bool) -> None:
    made = Deployment(id="d", status=status, completed_at=completed_at)  # pyright: ignore[reportArgumentType]
    assert (finished(made) is not None) is kept


def test_a_deployment_remembers_when_it_was_made_and_its_rollback() -> None:
    made = Deployment(
        id="d",
        application_id="a",
        labels={"z": "1", "a": "2"},
        status=5,  # pyright: ignore[reportArgumentType]
        created_at=3,
        completed_at=9,
        stages=[
            PipelineStage(name="SYNC", created_at=4),
            PipelineStage(name="ROLLBACK", created_at=6),
        ],
    )
    labels = (("a", "2"), ("z", "1"))
    assert finished(made) == Finished("d", "a", labels, 3, 9, FAILURE, rollback_started_at=6)


def test_applications_are_counted_by_kind_and_state() -> None:
    made = [
        Application(id="a", kind=common.ECS),
        Application(id="b", kind=common.ECS, disabled=True),
        Application(id="c", kind=common.ECS),
        Application(id="d", kind=2),  # pyright: ignore[reportArgumentType]
    ]
    assert counts(counted(application) for application in made) == {
        ("2", "ENABLED"): 1,
        ("ECS", "DISABLED"): 1,
        ("ECS", "ENABLED"): 2,
    }
