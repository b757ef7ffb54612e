# SPDX-License-Identifier: Apache-2.0
"""A connection that does not outlive its opening."""

import pytest

from pipecd.config.controlplane import DatastoreSpec
from pipecd.controlplane.datastore.mysql.address import mysql_address
from pipecd.controlplane.datastore.mysql.link import MySqlLink, connect
from pipecd.model.errors import StorageUnavailable


@pytest.fixture
def engine() -> str:
    return "mariadb"


def test_a_server_that_leaves_while_a_connection_is_opened_is_away(
    spec: DatastoreSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = MySqlLink.statement
    monkeypatch.setattr(MySqlLink, "statement", lambda link, text: [link.abort(), said(link, text)])
    with pytest.raises(StorageUnavailable, match="cannot be reached: MySQL server has gone away"):
        connect(mysql_address(spec.config))
