# SPDX-License-Identifier: Apache-2.0
"""Our enums have the names and numbers of the .proto files."""

from enum import IntEnum

import pytest
from google.protobuf.descriptor import EnumDescriptor

from pipecd.model.application import ApplicationKind, SyncStatus
from pipecd.model.command import CommandKind, CommandStatus
from pipecd.model.deployment import (
    DeploymentStatus,
    ManualOperation,
    StageStatus,
    SyncStrategy,
)
from pipecd.model.severity import LogSeverity
from pipecd.proto.model import (
    application_pb2,
    command_pb2,
    common_pb2,
    deployment_pb2,
    logblock_pb2,
)

PAIRS: list[tuple[type[IntEnum], EnumDescriptor, str]] = [
    (DeploymentStatus, deployment_pb2.DeploymentStatus.DESCRIPTOR, "DEPLOYMENT_"),
    (StageStatus, deployment_pb2.StageStatus.DESCRIPTOR, "STAGE_"),
    (SyncStrategy, common_pb2.SyncStrategy.DESCRIPTOR, ""),
    (ManualOperation, deployment_pb2.ManualOperation.DESCRIPTOR, "MANUAL_OPERATION_"),
    (ApplicationKind, common_pb2.ApplicationKind.DESCRIPTOR, ""),
    (SyncStatus, application_pb2.ApplicationSyncStatus.DESCRIPTOR, ""),
    (CommandKind, command_pb2.Command.Type.DESCRIPTOR, ""),
    (CommandStatus, command_pb2.CommandStatus.DESCRIPTOR, "COMMAND_"),
    (LogSeverity, logblock_pb2.LogSeverity.DESCRIPTOR, ""),
]


@pytest.mark.parametrize(
    ("ours", "theirs", "prefix"), [pytest.param(*pair, id=pair[0].__name__) for pair in PAIRS]
)
def test_an_enum_has_the_names_and_numbers_of_its_descriptor(
    ours: type[IntEnum], theirs: EnumDescriptor, prefix: str
) -> None:
    wire = {value.name: value.number for value in theirs.values}
    assert {prefix + member.name: member.value for member in ours} == wire
