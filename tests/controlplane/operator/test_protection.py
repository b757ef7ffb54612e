# SPDX-License-Identifier: Apache-2.0
"""A host name that another site could have is rejected."""

import pytest

from pipecd.controlplane.operator.protection import is_private


@pytest.mark.parametrize(
    ("host", "private"),
    [
        pytest.param("localhost:9082", True, id="this machine"),
        pytest.param("127.0.0.1:9082", True, id="a loopback address"),
        pytest.param("[::1]:9082", True, id="an IPv6 address"),
        pytest.param("10.0.0.7", True, id="a private address"),
        pytest.param("pipecd-ops:9082", True, id="a name without a domain"),
        pytest.param("pipecd-ops.pipecd.svc:9082", True, id="a service of a cluster"),
        pytest.param("pipecd-ops.pipecd.svc.cluster.local", True, id="a fully qualified service"),
        pytest.param("localhost.:9082", True, id="with a trailing dot"),
        pytest.param("evil.example", False, id="a public domain"),
        pytest.param("localhost.evil.example", False, id="a subdomain of another site"),
        pytest.param("127.0.0.1.nip.io", False, id="a name that resolves to this machine"),
        pytest.param("", False, id="empty"),
        pytest.param("[::1", False, id="invalid"),
    ],
)
def test_a_host_is_private(host: str, private: bool) -> None:
    assert is_private(host) is private
