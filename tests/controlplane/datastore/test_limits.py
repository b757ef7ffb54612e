# SPDX-License-Identifier: Apache-2.0
"""Every engine refuses what one of them cannot store."""

from collections.abc import Callable
from typing import Any

import pytest

from pipecd.controlplane.datastore.applications import ApplicationFilter
from pipecd.controlplane.datastore.limits import MAX_BYTES
from pipecd.controlplane.datastore.stage_logs import StageRun
from pipecd.controlplane.datastore.stores import Stores
from pipecd.model.errors import UserMistake
from pipecd.model.ids import new_id
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.model.logblock_pb2 import LogBlock
from pipecd.proto.model.piped_pb2 import Piped

Make = Callable[..., Application]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        pytest.param(
            {"name": "n" * 51}, r"Application.Name is longer than 50", id="a name that is too long"
        ),
        pytest.param({"piped_id": "p" * 37}, r"PipedId is longer than 36", id="a long piped id"),
        pytest.param({"project_id": "p" * 51}, r"ProjectId is longer than 50", id="a long project"),
        pytest.param({"created_at": 2**31}, r"CreatedAt is out of range", id="a time after 2038"),
        pytest.param({"description": "a\0b"}, r"zero byte", id="a zero byte"),
        pytest.param({"description": "\\\\\0"}, r"zero byte", id="a zero byte after a backslash"),
        pytest.param({"labels": {"a\0": "b"}}, r"zero byte", id="a zero byte in a label"),
        pytest.param({"description": "x" * MAX_BYTES}, r"more than \d+", id="a huge text"),
        pytest.param(
            {"description": "é" * (MAX_BYTES // 2)},
            r"more than \d+",
            id="a text that is too long in bytes",
        ),
    ],
)
async def test_a_document_beyond_the_limits_is_refused(
    stores: Stores, application: Make, fields: dict[str, Any], reason: str
) -> None:
    document = application(**fields)
    with pytest.raises(UserMistake, match=reason):
        await stores.applications.add(document)
    small = application(id=document.id)
    await stores.applications.add(small)

    def change(changed: Application) -> None:
        for name, value in fields.items():
            if name == "labels":
                changed.labels.update(value)
            else:
                setattr(changed, name, value)

    with pytest.raises(UserMistake, match=reason):
        await stores.applications.update(document.id, change)
    assert await stores.applications.get(document.id) == small


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"name": "é" * 50, "piped_id": "p" * 36}, id="texts of the maximum length"),
        pytest.param({"description": "\\u0000 \\0 🚀 ￿ \x01\x7f"}, id="unusual characters"),
        pytest.param({"created_at": 2**31 - 1}, id="the last second that fits"),
        pytest.param({"labels": {"k" * 400: "v" * 400, "": ""}}, id="long labels and empty ones"),
        pytest.param(
            {"labels": {"Env": "a", "env": "A", "env ": "a "}},
            id="labels that differ in case and spaces",
        ),
    ],
)
async def test_a_document_within_the_limits_is_stored(
    stores: Stores, application: Make, fields: dict[str, Any]
) -> None:
    document = application(**fields)
    await stores.applications.add(document)
    assert await stores.applications.get(document.id) == document
    for pair in document.labels.items():
        listed = await stores.applications.list(ApplicationFilter("p", labels=dict([pair])))
        assert [a.id for a in listed.items] == [document.id]


@pytest.mark.parametrize(
    "filter",
    [
        pytest.param(ApplicationFilter("P"), id="a project in another case"),
        pytest.param(ApplicationFilter("p "), id="a project with a trailing space"),
        pytest.param(ApplicationFilter("p", name="WEB"), id="a name in another case"),
        pytest.param(ApplicationFilter("p", name="wéb"), id="a name with an accent"),
        pytest.param(ApplicationFilter("p", labels={"env": "Dev"}), id="a label in another case"),
        pytest.param(
            ApplicationFilter("p", labels={"env": "dev "}), id="a label with a trailing space"
        ),
        pytest.param(ApplicationFilter("p", labels={"env": "d_v"}), id="a LIKE pattern"),
    ],
)
async def test_filters_compare_texts_exactly(
    stores: Stores, application: Make, filter: ApplicationFilter
) -> None:
    await stores.applications.add(application(labels={"env": "dev"}))
    assert (await stores.applications.list(filter)).items == ()


async def test_a_filter_with_a_zero_byte_is_refused(stores: Stores) -> None:
    for filter in (ApplicationFilter("p\0"), ApplicationFilter("p", labels={"a": "\0"})):
        with pytest.raises(UserMistake, match="zero byte"):
            await stores.applications.list(filter)


async def test_a_name_in_the_extra_column_has_a_limit(stores: Stores) -> None:
    piped = Piped(id=new_id(), name="n" * 101, project_id="p")
    with pytest.raises(UserMistake, match=r"Piped.name is longer than 100"):
        await stores.pipeds.add(piped)


async def test_the_application_name_of_a_deployment_has_a_lower_limit(
    stores: Stores, deployment: Callable[..., Deployment]
) -> None:
    await stores.deployments.add(deployment(application_name="n" * 36))
    with pytest.raises(UserMistake, match=r"ApplicationName is longer than 36"):
        await stores.deployments.add(deployment(application_name="n" * 37))


async def test_a_log_can_contain_any_character(stores: Stores) -> None:
    run, text = StageRun(new_id(), "étape"), "\0 \x1b[31m 🚀 \\u0000"
    await stores.stage_logs.append(run, [LogBlock(index=1, log=text)])
    assert [b.log for b in (await stores.stage_logs.read(run)).blocks] == [text]


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(StageRun("d" * 65, "s"), id="a deployment"),
        pytest.param(StageRun("d", "s" * 256), id="a stage"),
        pytest.param(StageRun("d\0", "s"), id="a zero byte"),
    ],
)
async def test_a_stage_log_with_an_id_beyond_the_limits_is_refused(
    stores: Stores, run: StageRun
) -> None:
    with pytest.raises(UserMistake):
        await stores.stage_logs.append(run, [LogBlock(index=1, log="x")])


async def test_a_log_block_has_a_maximum_size(stores: Stores) -> None:
    block = LogBlock(index=1, log="\x01" * (MAX_BYTES // 6 + 1))
    with pytest.raises(UserMistake, match="larger than"):
        await stores.stage_logs.append(StageRun("d", "s"), [block])
