# SPDX-License-Identifier: Apache-2.0
"""An application on a cluster."""

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipecd.plugins.kubernetes.plugin import KubernetesPlugin
from pipecd.sdk import PluginEntry, StartContext
from pipecd.sdk.testing import MemoryHost
from plugins.kubernetes.testbed import Application
from servers.fixtures import program, running
from servers.kubernetes import Kubernetes


@pytest.fixture
async def application(
    kubernetes: Kubernetes, namespace: str, tmp_path: Path
) -> AsyncIterator[Application]:
    plugin, host = KubernetesPlugin(), MemoryHost()
    async with AsyncExitStack() as lifetime:
        await plugin.prepare(StartContext(PluginEntry("kubernetes"), host, lifetime))
        yield Application(kubernetes, namespace, tmp_path, plugin, host)


@pytest.fixture(scope="session")
def other() -> Iterator[Kubernetes]:
    """A second cluster."""
    yield from running(Kubernetes)


DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@pytest.fixture(scope="session")
def routes(kubernetes: Kubernetes) -> None:
    """The kinds of Istio and of the Gateway API that route traffic, as they are published."""
    for file in Path(program("crds")).rglob("*.yaml"):
        for text in file.read_text().split("\n---\n"):
            if "kind: VirtualService\n" in text or "kind: HTTPRoute\n" in text:
                define(kubernetes, yaml.load(text, yaml.CSafeLoader))


def define(kubernetes: Kubernetes, definition: dict[str, Any]) -> None:
    """Installs a kind and waits until it is served."""
    kubernetes.ask("POST", DEFINITIONS, definition)
    end = time.monotonic() + 10
    while True:
        live = kubernetes.ask("GET", f"{DEFINITIONS}/{definition['metadata']['name']}")
        conditions = live["status"].get("conditions") or ()
        states = {condition["type"]: condition["status"] for condition in conditions}
        if states.get("Established") == "True":
            return
        assert time.monotonic() < end, f"the kind is not served: {states}"
        time.sleep(0.02)
