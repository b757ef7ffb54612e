# SPDX-License-Identifier: Apache-2.0
"""What one engine cannot hold is refused alike by all of them."""

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
        pytest.param({"name": "n" * 51}, r"Application.Name is longer than 50", id="a long name"),
        pytest.param({"piped_id": "p" * 37}, r"PipedId is longer than 36", id="a long piped id"),
        pytest.param({"project_id": "p" * 51}, r"ProjectId is longer than 50", id="a long project"),
        pytest.param({"created_at": 2**31}, r"CreatedAt is out of range", id="a time after 2038"),
        pytest.param({"description": "a\0b"}, r"zero byte", id="a zero byte"),
        pytest.param({"description": "\\\\\0"}, r"zero byte", id="one after a backslash"),
        pytest.param({"labels": {"a\0": "b"}}, r"zero byte", id="a zero byte in a label"),
        pytest.param({"description": "x" * MAX_BYTES}, r"more than \d+", id="a huge text"),
        pytest.param({"description": "é" * (MAX_BYTES // 2)}, r"more than \d+", id="huge in bytes"),
    ],
)
async def test_a_document_that_does_not_fit_is_refused(
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
        pytest.param({"name": "é" * 50, "piped_id": "p" * 36}, id="as long as it may be"),
        pytest.param({"description": "\\u0000 \\0 🚀 ￿ \x01\x7f"}, id="odd characters"),
        pytest.param({"created_at": 2**31 - 1}, id="the last second that fits"),
        pytest.param({"labels": {"k" * 400: "v" * 400, "": ""}}, id="long labels and empty ones"),
        pytest.param({"labels": {"Env": "a", "env": "A", "env ": "a "}}, id="labels almost alike"),
    ],
)
async def test_a_document_that_fits_comes_back(
    stores: Stores, application: Make, fields: dict[str, Any]
) -> None:
    document = application(**fields)
    await stores.applications.add(document)
    assert await stores.applications.get(document.id) == document
    for pair in document.labels.items():
        found = await stores.applications.list(ApplicationFilter("p", labels=dict([pair])))
        assert [a.id for a in found.items] == [document.id]


@pytest.mark.parametrize(
    "wanted",
    [
        pytest.param(ApplicationFilter("P"), id="another case of a project"),
        pytest.param(ApplicationFilter("p "), id="a space after a project"),
        pytest.param(ApplicationFilter("p", name="WEB"), id="another case of a name"),
        pytest.param(ApplicationFilter("p", name="wéb"), id="an accent more"),
        pytest.param(ApplicationFilter("p", labels={"env": "Dev"}), id="another case of a label"),
        pytest.param(ApplicationFilter("p", labels={"env": "dev "}), id="a space after a label"),
        pytest.param(ApplicationFilter("p", labels={"env": "d_v"}), id="a pattern"),
    ],
)
async def test_texts_that_are_almost_alike_are_not_the_same(
    stores: Stores, application: Make, wanted: ApplicationFilter
) -> None:
    await stores.applications.add(application(labels={"env": "dev"}))
    assert (await stores.applications.list(wanted)).items == ()


async def test_a_zero_byte_is_refused_in_a_search(stores: Stores) -> None:
    for wanted in (ApplicationFilter("p\0"), ApplicationFilter("p", labels={"a": "\0"})):
        with pytest.raises(UserMistake, match="zero byte"):
            await stores.applications.list(wanted)


async def test_a_name_without_a_column_of_its_own_has_a_limit_too(stores: Stores) -> None:
    piped = Piped(id=new_id(), name="n" * 101, project_id="p")
    with pytest.raises(UserMistake, match=r"Piped.name is longer than 100"):
        await stores.pipeds.add(piped)


async def test_the_name_of_a_deployment_is_shorter_than_that_of_its_application(
    stores: Stores, deployment: Callable[..., Deployment]
) -> None:
    await stores.deployments.add(deployment(application_name="n" * 36))
    with pytest.raises(UserMistake, match=r"ApplicationName is longer than 36"):
        await stores.deployments.add(deployment(application_name="n" * 37))


async def test_a_log_may_hold_any_character(stores: Stores) -> None:
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
async def test_an_id_that_does_not_fit_has_no_log(stores: Stores, run: StageRun) -> None:
    with pytest.raises(UserMistake):
        await stores.stage_logs.append(run, [LogBlock(index=1, log="x")])


async def test_a_block_of_a_log_has_a_limit(stores: Stores) -> None:
    block = LogBlock(index=1, log="\x01" * (MAX_BYTES // 6 + 1))
    with pytest.raises(UserMistake, match="larger than"):
        await stores.stage_logs.append(StageRun("d", "s"), [block])
