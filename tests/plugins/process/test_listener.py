# SPDX-License-Identifier: Apache-2.0
"""Where the router listens can change while programs run."""

from plugins.process.test_stages import roll_back, run
from plugins.process.testbed import Service, load
from servers.polling import eventually
from servers.server import free_ports


async def test_another_protocol_on_the_same_port_fails_no_request(service: Service) -> None:
    one = service.commit("one")
    await run(one, "PROCESS_SYNC")
    before = await service.pids()
    async with load(service.port) as counted:
        for protocol in ("TCP", "HTTP"):
            await run(service.commit("two", running=one, protocol=protocol), "PROCESS_SYNC")
            answered = counted.answers[200, "one"]
            await eventually(lambda n=answered: counted.answers[200, "one"] > n + 50, 30)
    assert counted.failed == {}
    assert await service.pids() == before


async def test_another_host_on_the_same_port(service: Service) -> None:
    one = service.commit("one")
    await run(one, "PROCESS_SYNC")
    service.target = {"host": "0.0.0.0"}
    two = service.commit("two", running=one)
    done = await run(two, "PROCESS_SYNC")
    assert done.message == f"Commit two runs at 0.0.0.0:{service.port}"
    assert await service.get() == (200, "one")


async def test_a_host_that_is_not_of_this_machine_leaves_the_former_one(service: Service) -> None:
    one = service.commit("one")
    await run(one, "PROCESS_SYNC")
    service.target = {"host": "192.0.2.1"}
    failed = await service.commit("two", running=one).run("PROCESS_SYNC")
    assert "192.0.2.1 is no address of this machine" in failed.message
    assert await service.get() == (200, "one")
    service.target = {}
    await roll_back(service.commit("two", running=service.commit("one")))
    assert (await service.status()).listen_error == ""
    assert await service.get() == (200, "one")


async def test_the_former_port_is_closed_when_the_new_one_is_open(service: Service) -> None:
    one = service.commit("one")
    await run(one, "PROCESS_SYNC")
    former, service.port = service.port, free_ports(1)[0]
    await run(service.commit("two", running=one), "PROCESS_SYNC")
    assert await service.get() == (200, "one")
    service.port = former
    try:
        await service.get()
    except ConnectionRefusedError:
        return
    raise AssertionError("the former port still accepts connections")
