# SPDX-License-Identifier: Apache-2.0
"""Blocks and chunks have the bytes of upstream, each deployment once, and correct counts."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecd.controlplane.insight.applications import (
    ApplicationData,
    ApplicationSnapshot,
    application_data,
    applications_path,
    count_applications,
    decode_applications,
    encode_applications,
)
from pipecd.controlplane.insight.chunks import (
    Block,
    Chunk,
    ChunkMeta,
    add_deployments,
    block_path,
    block_years,
    chunk_path,
    chunks_to_read,
    decode_block,
    decode_chunk,
    decode_results,
    encode_block,
    encode_chunk,
    year_of,
)
from pipecd.controlplane.insight.deployments import (
    CompletedDeployment,
    DeploymentResult,
    completed_deployment,
)
from pipecd.controlplane.insight.files import decode_file, go_json
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
    stored: list[dict[str, Any]] = json.loads(VECTORS.read_text())
    return [(o["key"], o["value"].encode()) for o in stored if o["key"].endswith(ending)]


D1 = CompletedDeployment("d1", APP, (), 1700000000, 1700000100, SUCCESS)
D2 = CompletedDeployment("d2", APP, (("env", "dev"),), 1700000200, 1700000300, FAILURE, 1700000250)
D3 = CompletedDeployment("d3", APP, (), 1700000400, 1700000500, CANCELLED)


def test_the_files_are_those_of_upstream_byte_for_byte() -> None:
    block, changed = add_deployments(Block(2023), {}, [D1, D2, D3], chunk_size=2)
    written = {
        chunk_path("quickstart", 2023, meta): encode_chunk(meta, changed[meta.index])
        for meta in block.chunks
    }
    assert written == dict(objects("chunk_0.json") + objects("chunk_1.json"))
    blocks = objects("block_meta.json")
    assert [
        (block_path("quickstart", 2023), encode_block(b)) for b in (Block(2023), block)
    ] == blocks
    application = ApplicationData(APP, (), "KUBERNETES", "ENABLED")
    file = (
        applications_path("quickstart"),
        encode_applications(ApplicationSnapshot((application,), 1700000000)),
    )
    assert [file] == objects("applications.json")


def test_files_of_upstream_are_read() -> None:
    empty, whole = (decode_block(content, 2023) for _, content in objects("block_meta.json"))
    assert empty == Block(2023)
    assert [chunk.count for chunk in whole.chunks] == [2, 1]
    chunk = objects("chunk_0.json")[0][1]
    assert decode_chunk(chunk) == (D1, D2)
    assert list(decode_results(chunk)) == [
        DeploymentResult(1700000100, APP, {}, is_failure=False),
        DeploymentResult(1700000300, APP, {"env": "dev"}, is_failure=True),
    ]
    snapshot = decode_applications(objects("applications.json")[0][1])
    assert count_applications(snapshot.applications) == {("KUBERNETES", "ENABLED"): 1}


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"{", id="truncated"),
        pytest.param(b"[]", id="a list"),
        pytest.param(b'{"deployments":[{}]}', id="an empty deployment"),
        pytest.param(b'{"deployments":[1]}', id="a number instead of a deployment"),
    ],
)
def test_the_error_of_a_damaged_file_names_it(content: bytes) -> None:
    with pytest.raises(PipecdError, match="chunk_7"):
        decode_file("insights/p/chunk_7.json", content, decode_chunk)


def test_text_is_escaped_as_go_does() -> None:
    assert go_json({"a": "<b> & \u2028ü"}) == '{"a":"\\u003cb\\u003e \\u0026 \\u2028ü"}'.encode()


def deployment(id: str, completed_at: int) -> CompletedDeployment:
    return CompletedDeployment(id, APP, (), 0, completed_at, SUCCESS)


@given(
    ends=st.lists(st.integers(1, 60), max_size=30),
    cuts=st.lists(st.integers(0, 30), max_size=6),
    repeated=st.integers(0, 5),
    chunk_size=st.integers(1, 7),
)
def test_each_deployment_is_stored_once_in_any_batches(
    ends: list[int], cuts: list[int], repeated: int, chunk_size: int
) -> None:
    new = [deployment(f"d{number}", at) for number, at in enumerate(ends)]
    edges = [0, *sorted(cut for cut in cuts if cut < len(new)), len(new)]
    block, files = Block(2023), dict[int, Chunk]()
    for start, end in pairwise(edges):
        batch = new[max(0, start - repeated) : end]
        chunks = {meta.index: files[meta.index] for meta in chunks_to_read(block, batch)}
        block, changed = add_deployments(block, chunks, batch, chunk_size=chunk_size)
        files |= changed
    assert sorted(d.id for chunk in files.values() for d in chunk) == sorted(d.id for d in new)
    assert [len(files[meta.index]) for meta in block.chunks] == [m.count for m in block.chunks]
    assert all(meta.completed for meta in block.chunks[:-1])
    for meta in block.chunks:
        assert meta.completed == (meta.count == chunk_size)
        assert {meta.first, meta.last} <= {d.completed_at for d in files[meta.index]}


def test_a_chunk_written_before_a_crash_wins_over_its_block() -> None:
    # The block lists one deployment, but the chunk is full.
    block = Block(2023, (ChunkMeta(0, first=5, last=5, count=1, completed=False),))
    chunks = {0: (deployment("a", 5), deployment("b", 6))}
    updated, changed = add_deployments(
        block, chunks, [deployment("b", 6), deployment("c", 7)], chunk_size=2
    )
    assert changed == {1: (deployment("c", 7),)}
    assert [(m.count, m.completed) for m in updated.chunks] == [(2, True), (1, False)]


def test_chunks_are_chosen_by_time() -> None:
    early, late = ChunkMeta(0, 10, 20, 2, completed=True), ChunkMeta(1, 21, 30, 2, completed=False)
    block = Block(2023, (early, late))
    assert block.between(20, 20) == (early,)
    assert block.between(0, 9) == ()
    assert chunks_to_read(block, [deployment("a", 15)]) == (early, late)
    assert chunks_to_read(block, [deployment("a", 25)]) == (late,)
    assert chunks_to_read(block, []) == (late,)


def test_years_are_in_utc_and_adjacent_blocks_are_read() -> None:
    new_year = 1704067200
    assert (year_of(new_year - 1), year_of(new_year)) == (2023, 2024)
    assert list(block_years(new_year, new_year + 10)) == [2023, 2024]
    assert list(block_years(0, 1)) == [1970]


@pytest.mark.parametrize(
    ("status", "completed_at", "is_stored"),
    [
        pytest.param(SUCCESS, 9, True, id="successful"),
        pytest.param(CANCELLED, 9, True, id="cancelled"),
        pytest.param(DeploymentStatus.RUNNING, 9, False, id="running"),
        pytest.param(SUCCESS, 0, False, id="without a completion time"),
        pytest.param(77, 9, False, id="with an unknown status"),
    ],
)
def test_only_completed_deployments_are_stored(
    status: int, completed_at: int, is_stored: bool
) -> None:
    made = Deployment(id="d", status=status, completed_at=completed_at)  # pyright: ignore[reportArgumentType]
    assert (completed_deployment(made) is not None) is is_stored


def test_a_deployment_is_stored_with_its_start_and_rollback() -> None:
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
    assert completed_deployment(made) == CompletedDeployment(
        "d", "a", labels, 3, 9, FAILURE, rollback_started_at=6
    )


def test_applications_are_counted_by_kind_and_status() -> None:
    made = [
        Application(id="a", kind=common.ECS),
        Application(id="b", kind=common.ECS, disabled=True),
        Application(id="c", kind=common.ECS),
        Application(id="d", kind=2),  # pyright: ignore[reportArgumentType]
    ]
    assert count_applications(application_data(application) for application in made) == {
        ("2", "ENABLED"): 1,
        ("ECS", "DISABLED"): 1,
        ("ECS", "ENABLED"): 2,
    }
