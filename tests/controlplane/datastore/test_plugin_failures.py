# SPDX-License-Identifier: Apache-2.0
"""What pipeds run without, on every engine."""

from pipecd.controlplane.datastore.stores import Stores
from pipecd.model.ids import new_id
from pipecd.proto.service.pluginfailures_pb2 import PluginFailure

GREETER = PluginFailure(plugin="greeter", reason="it ended:\n🚫 no licence", since=7)
FAR = PluginFailure(plugin="ecs", target="far", reason="no region", since=8)
ECS = PluginFailure(plugin="ecs", reason="r" * 4096, since=9)


async def test_each_report_replaces_the_previous_one_of_its_piped(stores: Stores) -> None:
    one, other = new_id(), new_id()
    assert await stores.plugin_failures.list(one) == ()
    await stores.plugin_failures.replace(one, [GREETER, FAR, ECS])
    await stores.plugin_failures.replace(other, [FAR])
    assert await stores.plugin_failures.list(one) == (GREETER, FAR, ECS)
    counts = await stores.plugin_failures.counts()
    assert (counts[one], counts[other]) == (2, 1)
    await stores.plugin_failures.replace(one, [ECS])
    assert await stores.plugin_failures.list(one) == (ECS,)
    await stores.plugin_failures.replace(one, [])
    assert await stores.plugin_failures.list(one) == ()
    assert one not in await stores.plugin_failures.counts()
    assert await stores.plugin_failures.list(other) == (FAR,)
