# SPDX-License-Identifier: Apache-2.0
"""Documents to look at, at a fixed moment."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from pipecd.controlplane.console.view.agent import Agent
from pipecd.controlplane.console.view.marks import Mark, Tone
from pipecd.model.clock import to_unix
from pipecd.proto.model.deployment_pb2 import Commit, Deployment, DeploymentTrigger, PipelineStage

NOW = datetime(2026, 8, 22, 17, 0, 0, tzinfo=UTC)
START = to_unix(NOW) - 600


@pytest.fixture
def noon() -> datetime:
    """The moment at which everything is looked at."""
    return NOW


@pytest.fixture
def start() -> int:
    """Ten minutes before, when the deployment began."""
    return START


@pytest.fixture
def online() -> Agent:
    return Agent("p1", "tokyo", Mark(Tone.OK, "dot", "Online"), is_away=False)


@pytest.fixture
def offline() -> Agent:
    return Agent("p1", "tokyo", Mark(Tone.BAD, "dot", "Offline"), is_away=True)


@pytest.fixture
def stage() -> Callable[..., PipelineStage]:
    """Makes stages that were planned when the deployment began."""

    def made(id: str, name: str, **fields: Any) -> PipelineStage:
        return PipelineStage(id=id, name=name, created_at=START, updated_at=START, **fields)

    return made


@pytest.fixture
def deployment() -> Callable[..., Deployment]:
    """Makes deployments that began ten minutes ago."""

    def made(*stages: PipelineStage, **fields: Any) -> Deployment:
        commit = Commit(
            hash="7f3c91ab" * 5,
            message="Retry card tokens once\n\nThe bank asks for it.",
            author="ann",
            branch="main",
            url=f"https://git.example/shop/commit/{'7f3c91ab' * 5}",
            created_at=START - 60,
        )
        values: dict[str, Any] = {
            "id": "d1",
            "application_id": "a1",
            "application_name": "checkout",
            "trigger": DeploymentTrigger(commit=commit, timestamp=START),
            "created_at": START,
            **fields,
        }
        return Deployment(stages=stages, **values)

    return made
