# SPDX-License-Identifier: Apache-2.0
"""Lists of applications for users whose roles cover some labels only."""

import pytest

from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.console.application_summary import application_summary
from pipecd.controlplane.datastore.applications import ApplicationFilter
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases import UseCases
from pipecd.model.errors import Denied
from pipecd.model.ids import new_id
from pipecd.proto.model import project_pb2 as project
from pipecd.proto.model.application_pb2 import Application

TOM = User("shop", "tom", ("team",))


async def add_role(
    cases: UseCases, type: project.ProjectRBACResource.ResourceType.ValueType, admin: User
) -> None:
    """Lets the team list the objects of a type that have the label `env: dev`."""
    covered = project.ProjectRBACResource(type=type, labels={"env": "dev"})
    policy = project.ProjectRBACPolicy(
        resources=[covered], actions=[project.ProjectRBACPolicy.LIST]
    )
    await cases.roles.add("team", [policy], by=admin)


async def add(stores: Stores, *, project: str = "shop", deleted: bool = False, env: str) -> str:
    added = Application(id=new_id(), name="web", project_id=project, deleted=deleted)
    added.piped_id, added.kind = new_id(), 0
    added.git_path.repo.id, added.git_path.path = "site", "apps/web"
    added.labels["env"] = env
    await stores.applications.add(added)
    return added.id


async def test_summaries_are_of_the_applications_that_the_roles_cover(
    cases: UseCases, stores: Stores, admin: User
) -> None:
    await add_role(cases, project.ProjectRBACResource.APPLICATION, admin)
    visible = await add(stores, env="dev")
    hidden = [
        await add(stores, env="prd"),
        await add(stores, env="dev", project="other"),
        await add(stores, env="dev", deleted=True),
    ]
    listed = await cases.applications.list_derived(
        ApplicationFilter("shop"), application_summary, by=TOM
    )
    assert [summary.id for summary in listed] == [visible]
    assert [*await cases.applications.get_many([*hidden, visible, new_id()], by=TOM)] == [visible]


async def test_summaries_need_the_permission_to_list_applications(
    cases: UseCases, stores: Stores, admin: User
) -> None:
    await add_role(cases, project.ProjectRBACResource.DEPLOYMENT, admin)
    id = await add(stores, env="dev")
    for listing in (
        cases.applications.list_derived(ApplicationFilter("shop"), application_summary, by=TOM),
        cases.applications.get_many([id], by=TOM),
    ):
        with pytest.raises(Denied):
            await listing
