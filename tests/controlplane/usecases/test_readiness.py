# SPDX-License-Identifier: Apache-2.0
"""The page of the readiness probe."""

import pytest

from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases.readiness import Readiness
from pipecd.model.errors import Unavailable


async def test_a_control_plane_is_not_ready_until_its_ports_are_open(stores: Stores) -> None:
    readiness = Readiness(stores)
    with pytest.raises(Unavailable, match="not all ports are open yet"):
        await readiness.page()
    readiness.ports_are_open()
    assert await readiness.page() == b"datastore: ok\nfilestore: ok\n"
