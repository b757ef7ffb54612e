# SPDX-License-Identifier: Apache-2.0
"""Our own time of a deployment to Cloud Run and Lambda, and the cost of many idle applications.

The clouds are the servers of the tests, in a process of their own, and carry out changes at once.
Our own time is that of a stage without the time of its requests. Then the live state and drift of
many applications is read once, as piped does every minute.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from pipecd.observe.log import configure
from pipecd.plugins.aws_lambda.plugin import LambdaPlugin
from pipecd.plugins.cloudrun.client import CloudRunClient
from pipecd.plugins.cloudrun.plugin import CloudRunPlugin
from pipecd.sdk import DeployTarget, PluginEntry, StageStatus, StartContext, SyncStatus
from pipecd.sdk.aws import AwsAccount
from pipecd.sdk.testing import MemoryHost, StageBench

# The servers are those of the tests.
TESTS = str(Path(__file__).parents[1] / "tests")
INTERVAL = 60.0
# Reads of a project and region, and requests of an account and region besides GetFunction.
ALLOWED = {"cloudrun": 3_000, "lambda": 15 * 60}
CLOUD_RUN = """
import sys
from pathlib import Path
sys.path.append(sys.argv[1])
from servers.cloud_run import CloudRun
import json
print(json.dumps(CloudRun(Path(sys.argv[2]), seconds=0).target), flush=True)
"""
AMAZON = """
import logging, sys, time
sys.path.append(sys.argv[1])
logging.disable(logging.CRITICAL)
from servers.amazon import REGION, Amazon
import json
server = Amazon({})
server.start()
server.client("iam").create_role(RoleName="tests", AssumeRolePolicyDocument="{}")
print(json.dumps({"region": REGION, "endpoint": server.url}), flush=True)
time.sleep(3600)
"""


@dataclass
class RequestTime:
    """How many requests were sent, and how long they took."""

    seconds: float = 0
    count: int = 0
    _running: int = 0
    _since: float = 0

    def measure(self, kind: type[Any], method: str) -> None:
        """Measures all calls of a method; concurrent ones count once."""
        original = getattr(kind, method)

        async def measured(*given: Any, **more: Any) -> Any:
            self.count += 1
            if self._running == 0:
                self._since = time.perf_counter()
            self._running += 1
            try:
                return await original(*given, **more)
            finally:
                self._running -= 1
                if self._running == 0:
                    self.seconds += time.perf_counter() - self._since

        setattr(kind, method, measured)


@dataclass
class Platform:
    """A plugin with a cloud."""

    name: str
    plugin: Any
    stage: str
    file: str
    target: Mapping[str, Any]
    requests: RequestTime
    host: MemoryHost = field(default_factory=MemoryHost)

    def manifest(self, name: str, tag: str) -> dict[str, Any]:
        if self.name == "cloudrun":
            containers = [{"image": f"gcr.io/example/shop:{tag}"}]
            return {
                "apiVersion": "serving.knative.dev/v1",
                "kind": "Service",
                "metadata": {"name": name},
                "spec": {"template": {"spec": {"containers": containers}}},
            }
        account = "123456789012"
        spec = {
            "name": name,
            "role": f"arn:aws:iam::{account}:role/tests",
            "image": f"{account}.dkr.ecr.eu-west-1.amazonaws.com/shop:{tag}",
            "memory": 128,
            "timeout": 3,
        }
        return {"apiVersion": "pipecd.dev/v1beta1", "kind": "LambdaFunction", "spec": spec}

    def bench(self, directory: Path, name: str, tag: str) -> StageBench:
        """Returns a commit of an application."""
        directory = directory / f"{name}-{tag}"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / self.file).write_text(json.dumps(self.manifest(name, tag)))
        spec = {"name": name, "plugins": {self.name: {}}}
        config = {"apiVersion": "pipecd.dev/v1beta1", "kind": "Application", "spec": spec}
        return StageBench(
            self.plugin,
            directory,
            entry=PluginEntry(self.name, {}, (DeployTarget("cloud", {}, self.target),)),
            host=self.host,
            commit=f"{tag}0000000",
            config=json.dumps(config),
            application_id=name,
        )


async def deploy(bench: StageBench, stage: str) -> None:
    bench.host.plugin_metadata.clear()
    result = await bench.run(stage)
    if result.status is not StageStatus.SUCCESS:
        raise SystemExit(result.message)


async def run(platform: Platform, deployments: int, applications: int) -> None:
    own: list[float] = []
    requests = platform.requests
    async with AsyncExitStack() as lifetime:
        directory = Path(lifetime.enter_context(tempfile.TemporaryDirectory()))
        start = StartContext(PluginEntry(platform.name), platform.host, lifetime)
        await platform.plugin.prepare(start)
        for number in range(deployments + 1):
            before, began = requests.seconds, time.perf_counter()
            await deploy(platform.bench(directory, "shop", f"v{number}"), platform.stage)
            own.append(time.perf_counter() - began - (requests.seconds - before))
        # The first one opens the connections.
        p50, worst = median(own[1:]), max(own[1:])
        print(
            f"{platform.name}: own time of a deployment   p50 {p50 * 1000:5.0f} ms   "
            f"worst {worst * 1000:5.0f} ms   (target: 500 ms)"
        )
        benches = [platform.bench(directory, f"app-{n}", "v1") for n in range(applications)]
        for bench in benches:
            await deploy(bench, platform.stage)
        requests.count, began = 0, time.process_time()
        for bench in benches:
            state = await platform.plugin.live_state(bench.live_context())
            if state.sync.status is not SyncStatus.SYNCED:
                raise SystemExit(f"{bench.application_id} is not synced: {state.sync}")
        share = (time.process_time() - began) / INTERVAL
        print(
            f"{platform.name}: {applications} idle applications   {share:6.2%} of a core   "
            f"(target: 5 %)   {requests.count} requests a minute "
            f"(the cloud allows {ALLOWED[platform.name]:,})"
        )


@contextmanager
def cloud(program: str, *arguments: str) -> Iterator[dict[str, str]]:
    """Runs a server in a process of its own and yields the settings of a deploy target for it."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, TESTS, *arguments], stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())
    finally:
        process.kill()
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deployments", type=int, default=20)
    parser.add_argument("--applications", type=int, default=200)
    given = parser.parse_args()
    configure("error", "console")
    calls = RequestTime()
    calls.measure(CloudRunClient, "_send")
    calls.measure(AwsAccount, "call")
    with tempfile.TemporaryDirectory() as directory, cloud(CLOUD_RUN, directory) as target:
        platform = Platform(
            "cloudrun", CloudRunPlugin(), "CLOUDRUN_SYNC", "service.yaml", target, calls
        )
        asyncio.run(run(platform, given.deployments, given.applications))
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        del os.environ[name]
    os.environ |= {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench"}
    with cloud(AMAZON) as target:
        platform = Platform("lambda", LambdaPlugin(), "LAMBDA_SYNC", "function.yaml", target, calls)
        asyncio.run(run(platform, given.deployments, given.applications))


if __name__ == "__main__":
    main()
