# SPDX-License-Identifier: Apache-2.0
"""Lists of deployments for users whose roles cover some labels only."""

from collections.abc import Callable

import pytest

from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.datastore.deployments import DeploymentFilter
from pipecd.controlplane.datastore.documents import PageRequest
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases import UseCases
from pipecd.model.ids import new_id
from pipecd.proto.model import project_pb2 as project
from pipecd.proto.model.deployment_pb2 import Deployment

LABELS = (
    {"env": "dev", "team": "a"},
    {"env": "dev", "team": "b"},
    {"env": "dev"},
    {"env": "prd", "team": "a"},
    {},
)


@pytest.mark.parametrize(
    ("covered", "filtered", "listed"),
    [
        pytest.param([{"env": "dev"}], {}, (0, 1, 2), id="one label"),
        pytest.param([{"env": "dev", "team": "a"}], {}, (0,), id="two labels"),
        pytest.param(
            [{"env": "dev", "team": "a"}, {"env": "dev", "team": "b"}],
            {},
            (0, 1),
            id="policies that share a label",
        ),
        pytest.param(
            [{"env": "prd"}, {"team": "b"}], {}, (1, 3), id="policies that share no label"
        ),
        pytest.param([{"env": "dev"}, {}], {}, (0, 1, 2, 3, 4), id="a policy without labels"),
        pytest.param([{"env": "dev"}], {"team": "a"}, (0,), id="a filter by another label"),
        pytest.param([{"env": "dev"}], {"env": "prd"}, (), id="a filter outside of the scope"),
    ],
)
async def test_a_list_has_the_deployments_that_the_roles_cover(
    cases: UseCases,
    stores: Stores,
    admin: User,
    new_deployment: Callable[[], Deployment],
    covered: list[dict[str, str]],
    filtered: dict[str, str],
    listed: tuple[int, ...],
) -> None:
    policies = [
        project.ProjectRBACPolicy(
            resources=[
                project.ProjectRBACResource(
                    type=project.ProjectRBACResource.DEPLOYMENT, labels=labels
                )
            ],
            actions=[project.ProjectRBACPolicy.LIST],
        )
        for labels in covered
    ]
    await cases.roles.add("team", policies, by=admin)
    ids: list[str] = []
    for at, labels in enumerate(LABELS):
        document = new_deployment()
        document.id, document.updated_at = new_id(), 100 - at
        document.labels.clear()
        document.labels.update(labels)
        await stores.deployments.add(document)
        ids.append(document.id)
    filter = DeploymentFilter("shop", labels=filtered)
    page = await cases.deployments.list(filter, PageRequest(9), by=User("shop", "tom", ("team",)))
    assert [d.id for d in page.items] == [ids[number] for number in listed]
