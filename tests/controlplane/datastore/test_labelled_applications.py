# SPDX-License-Identifier: Apache-2.0
"""The index of applications by the labels of their deployments."""

import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest
from sqlalchemy import delete, select

from pipecd.controlplane.datastore import labelled_applications
from pipecd.controlplane.datastore.database import Database
from pipecd.controlplane.datastore.deployments import DeploymentFilter, Deployments
from pipecd.controlplane.datastore.documents import PageRequest
from pipecd.controlplane.datastore.schema import EXT_LABELLED_APPLICATION, EXT_META
from pipecd.controlplane.datastore.stores import Stores
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import Deployment

MakeDeployment = Callable[..., Deployment]
OpenDatabase = Callable[[], AbstractAsyncContextManager[Database]]

ROW = EXT_LABELLED_APPLICATION.c


async def rows(database: Database) -> set[tuple[str, str, str]]:
    read = await database.query(select(ROW.LabelKey, ROW.LabelValue, ROW.ApplicationId))
    return {(key, value, application) for key, value, application in read}


async def forget(database: Database) -> None:
    """Removes what an earlier release would not have stored."""
    await database.write(lambda t: t.execute(delete(EXT_LABELLED_APPLICATION)))


async def listed(deployments: Deployments, **labels: str) -> int:
    page = await deployments.list(DeploymentFilter("p", labels=labels), PageRequest(9))
    return len(page.items)


async def test_an_application_is_stored_once_for_each_label(
    stores: Stores, database: Database, deployment: MakeDeployment
) -> None:
    for application in ("a", "a", "a", "b"):
        labels = {"env": "dev", "team": application}
        await stores.deployments.add(deployment(application_id=application, labels=labels))
    assert await rows(database) == {
        ("env", "dev", "a"),
        ("env", "dev", "b"),
        ("team", "a", "a"),
        ("team", "b", "b"),
    }


async def test_a_changed_label_is_found_and_the_old_one_is_not(
    stores: Stores, deployment: MakeDeployment
) -> None:
    document = deployment(labels={"env": "dev"})
    await stores.deployments.add(document)
    await stores.deployments.update(document.id, lambda d: d.labels.update({"env": "prd"}))
    assert await listed(stores.deployments, env="prd") == 1
    assert await listed(stores.deployments, env="dev") == 0


async def test_a_label_of_more_characters_than_a_column_is_found(
    stores: Stores, deployment: MakeDeployment
) -> None:
    await stores.deployments.add(deployment(labels={"env": "x" * 300}))
    assert await listed(stores.deployments, env="x" * 300) == 1
    assert await listed(stores.deployments, env="x" * 299) == 0


async def test_a_database_of_an_earlier_release_is_indexed_when_it_is_opened(
    open_database: OpenDatabase,
    deployment: MakeDeployment,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(labelled_applications, "FILL_BATCH", 3)
    watermark = delete(EXT_META).where(EXT_META.c.Name == labelled_applications.WATERMARK)
    async with open_database() as database:
        deployments = Deployments(database)
        for number in range(10):
            labels = {"team": str(number % 2)}
            await deployments.add(deployment(application_id=f"a{number % 4}", labels=labels))
        stored = await rows(database)
        await forget(database)
        await database.write(lambda t: t.execute(watermark))
        assert await listed(deployments, team="1") == 0
    async with open_database() as database:
        assert await rows(database) == stored
        assert await listed(Deployments(database), team="1") == 5


async def test_deployments_that_another_release_stores_are_indexed_later(
    stores: Stores,
    database: Database,
    deployment: MakeDeployment,
    application: Callable[..., Application],
) -> None:
    await stores.applications.add(application())
    await stores.deployments.add(deployment(labels={"env": "dev"}, updated_at=int(time.time())))
    await forget(database)
    assert await stores.deployments.index_other_releases() == 1
    assert await stores.deployments.index_other_releases() == 0
    assert await listed(stores.deployments, env="dev") == 1
