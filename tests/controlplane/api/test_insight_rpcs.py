# SPDX-License-Identifier: Apache-2.0
"""Insight and release RPCs over a real channel, as upstream's console calls them."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import grpc
import grpc.aio
import pytest

from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.datastore.piped_leases import PipedLease
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases import UseCases
from pipecd.observe.version import build_version
from pipecd.proto.model import insight_pb2 as model
from pipecd.proto.model.piped_pb2 import Piped
from pipecd.proto.service import web_pb2 as pb
from pipecd.proto.service.web_pb2_grpc import WebServiceStub

Cookie = Callable[[User], tuple[tuple[str, str], ...]]

APP = "f47ac10b-58cc-4372-a567-0e02b2c3d479"
# Files in the format of upstream.
BLOCK = b'{"block_id":"block_2023","chunk_metadata":[{"chunk_id":"chunk_0","chunk_index":0,"min_timestamp":1700000100,"max_timestamp":1700090000,"count":3,"completed":false}]}'
CHUNK = b'{"chunk_id":"chunk_0","deployments":[{"id":"d1","app_id":"f47ac10b-58cc-4372-a567-0e02b2c3d479","labels":null,"started_at":1700000000,"completed_at":1700000100,"complete_status":"DEPLOYMENT_SUCCESS","rollback_started_at":0},{"id":"d2","app_id":"f47ac10b-58cc-4372-a567-0e02b2c3d479","labels":{"env":"dev"},"started_at":1700000200,"completed_at":1700000300,"complete_status":"DEPLOYMENT_FAILURE","rollback_started_at":1700000250},{"id":"d3","app_id":"other","labels":null,"started_at":1700080000,"completed_at":1700090000,"complete_status":"DEPLOYMENT_CANCELLED","rollback_started_at":0}]}'
BOOK = b'{"applications":[{"id":"a","labels":null,"kind":"KUBERNETES","status":"ENABLED"},{"id":"b","labels":null,"kind":"KUBERNETES","status":"ENABLED"},{"id":"c","labels":null,"kind":"ECS","status":"DISABLED"}],"updated_at":1700000000}'

FIRST = int(datetime(2023, 11, 14, tzinfo=UTC).timestamp())
DAY = 86400


@pytest.fixture
async def ask(web_channel: grpc.aio.Channel, cookie: Cookie, viewer: User, stores: Stores) -> Any:
    """Calls an RPC as a viewer of a project that has files of upstream."""
    folder = "insights/shop/completed-deployments/block_2023"
    await stores.files.put(f"{folder}/block_meta.json", BLOCK)
    await stores.files.put(f"{folder}/chunk_0.json", CHUNK)

    async def call(name: str, **fields: Any) -> Any:
        request = getattr(pb, f"{name}Request")(**fields)
        return await getattr(WebServiceStub(web_channel), name)(request, metadata=cookie(viewer))

    return call


@pytest.mark.parametrize(
    ("fields", "values"),
    [
        pytest.param({}, [2.0, 1.0, 0.0], id="deployments of each day, 0 where there is none"),
        pytest.param({"application_id": APP}, [2.0, 0.0, 0.0], id="of an application"),
        pytest.param({"labels": {"env": "dev"}}, [1.0, 0.0, 0.0], id="with labels"),
        pytest.param(
            {"metrics_kind": model.CHANGE_FAILURE_RATE},
            [0.5, 0.0, 0.0],
            id="change failure rate",
        ),
        pytest.param({"resolution": model.MONTHLY}, [3.0], id="by month"),
        pytest.param({"metrics_kind": model.LEAD_TIME}, [0.0] * 3, id="lead time"),
        pytest.param({"metrics_kind": model.MTTR}, [0.0] * 3, id="time to restore"),
    ],
)
async def test_the_points_of_a_series(
    ask: Any, fields: dict[str, Any], values: list[float]
) -> None:
    answer = await ask("GetInsightData", range_from=FIRST, range_to=FIRST + 3 * DAY - 1, **fields)
    assert (answer.updated_at, answer.type, len(answer.vector)) == (0, model.MATRIX, 0)
    (stream,) = answer.matrix
    assert dict(stream.labels) == {}
    assert [point.value for point in stream.data_points] == values


async def test_the_time_of_a_point_is_the_start_of_its_day_or_month(ask: Any) -> None:
    time_range = {"range_from": FIRST + 5, "range_to": FIRST + DAY}
    days = await ask("GetInsightData", **time_range)
    months = await ask("GetInsightData", **time_range, resolution=model.MONTHLY)
    assert [p.timestamp for p in days.matrix[0].data_points] == [FIRST, FIRST + DAY]
    assert [p.timestamp for p in months.matrix[0].data_points] == [FIRST - 13 * DAY]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        pytest.param(
            {"range_from": 9, "range_to": 8},
            grpc.StatusCode.INVALID_ARGUMENT,
            id="a range that ends before it begins",
        ),
        pytest.param(
            {"range_from": 1, "range_to": 732 * DAY},
            grpc.StatusCode.INVALID_ARGUMENT,
            id="a range of more than two years",
        ),
        pytest.param(
            {"range_from": 1, "range_to": 2, "metrics_kind": model.APPLICATIONS_COUNT},
            grpc.StatusCode.UNIMPLEMENTED,
            id="applications over time",
        ),
        pytest.param({}, grpc.StatusCode.INVALID_ARGUMENT, id="no range"),
    ],
)
async def test_a_series_is_refused_for(
    ask: Any, fields: dict[str, Any], code: grpc.StatusCode
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await ask("GetInsightData", **fields)
    assert refused.value.code() is code


async def test_applications_are_counted_by_kind_and_state(ask: Any, stores: Stores) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as missing:
        await ask("GetInsightApplicationCount")
    assert missing.value.code() is grpc.StatusCode.NOT_FOUND
    await stores.files.put("insights/shop/applications/applications.json", BOOK)
    answer = await ask("GetInsightApplicationCount")
    assert answer.updated_at == 1700000000
    counts = [(dict(one.labels), one.count) for one in answer.counts]
    assert counts == [
        ({"KIND": "ECS", "ACTIVE_STATUS": "DISABLED"}, 1),
        ({"KIND": "KUBERNETES", "ACTIVE_STATUS": "ENABLED"}, 2),
    ]


async def test_releases_are_listed_without_a_network(ask: Any) -> None:
    assert list((await ask("ListReleasedVersions")).versions) == [build_version()]
    assert (await ask("ListDeprecatedNotes", project_id="any")).notes == ""


async def test_our_version_is_not_offered_to_pipeds_of_upstream(
    ask: Any, stores: Stores, cases: UseCases, admin: User
) -> None:
    registered = await cases.pipeds.register("edge", "", by=admin)

    def report(piped: Piped) -> None:
        piped.version = "v0.52.0"

    await stores.pipeds.update(registered.id, report)
    assert not (await ask("ListReleasedVersions")).versions
    lease = PipedLease(epoch=1, instance="i", host="h")
    await stores.piped_leases.update(registered.id, lambda _: lease)
    assert list((await ask("ListReleasedVersions")).versions) == [build_version()]
