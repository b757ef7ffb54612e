# SPDX-License-Identifier: Apache-2.0
"""An application that is deployed to Lambda."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from uuid import uuid4

import pytest

from pipecd.plugins.aws_lambda.plugin import LambdaPlugin
from pipecd.sdk import Backoff, PluginEntry, StartContext
from pipecd.sdk.aws import Polling
from pipecd.sdk.testing import MemoryHost
from plugins.aws_lambda.testbed import Application
from servers.amazon import Amazon


@pytest.fixture
async def application(amazon: Amazon, tmp_path: Path) -> AsyncIterator[Application]:
    iam = amazon.client("iam")
    with suppress(iam.exceptions.EntityAlreadyExistsException):
        iam.create_role(RoleName="tests", AssumeRolePolicyDocument="{}")
    polling = Polling(within=2, backoff=Backoff(first=0.002, longest=0.01))
    plugin, host = LambdaPlugin(polling), MemoryHost()
    async with AsyncExitStack() as lifetime:
        await plugin.prepare(StartContext(PluginEntry("lambda"), host, lifetime))
        yield Application(f"shop-{uuid4().hex[:8]}", tmp_path, plugin, host, amazon)
