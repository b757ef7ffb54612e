# SPDX-License-Identifier: Apache-2.0
"""Names that another site could have are not answered."""

import pytest

from pipecd.controlplane.operator.guard import is_private


@pytest.mark.parametrize(
    ("host", "private"),
    [
        pytest.param("localhost:9082", True, id="this machine"),
        pytest.param("127.0.0.1:9082", True, id="an address"),
        pytest.param("[::1]:9082", True, id="an address of IPv6"),
        pytest.param("10.0.0.7", True, id="an address of a network"),
        pytest.param("pipecd-ops:9082", True, id="a name without a domain"),
        pytest.param("pipecd-ops.pipecd.svc:9082", True, id="a service of a cluster"),
        pytest.param("pipecd-ops.pipecd.svc.cluster.local", True, id="its long name"),
        pytest.param("localhost.:9082", True, id="with the dot of the root"),
        pytest.param("evil.example", False, id="a name of the internet"),
        pytest.param("localhost.evil.example", False, id="one that looks like ours"),
        pytest.param("127.0.0.1.nip.io", False, id="one that resolves to us"),
        pytest.param("", False, id="none"),
        pytest.param("[::1", False, id="nonsense"),
    ],
)
def test_a_host_is_private(host: str, private: bool) -> None:
    assert is_private(host) is private
