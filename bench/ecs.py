# SPDX-License-Identifier: Apache-2.0
"""Our own time of a deployment to ECS, and the cost of the live state of many services.

AWS is moto behind the layer of the tests, in a process of its own. The time of a deployment is that
of a pipeline with a canary behind a load balancer, without the time in requests to AWS. Then
measures how much processor time and how many requests the live state and drift of many services
take, beside the rate of reads that AWS documents for an account and region.
"""

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import boto3
from botocore.client import BaseClient

from pipecd.observe.log import configure
from pipecd.plugins.ecs.plugin import EcsPlugin
from pipecd.sdk import DeployTarget, PluginEntry, StageStatus, StartContext, SyncStatus
from pipecd.sdk.aws import AwsAccount
from pipecd.sdk.testing import MemoryHost, StageBench

TESTS = Path(__file__).parents[1] / "tests"
SERVER = """\
import sys, threading
sys.path.insert(0, sys.argv[1])
from servers.amazon import Amazon
from servers.amazon_ecs import EcsRules, ElbRules
amazon = Amazon({"ecs": EcsRules(), "elbv2": ElbRules()})
amazon.start()
print(amazon.url, flush=True)
threading.Event().wait()
"""
REGION, CLUSTER = "eu-west-1", "bench"
STAGES: list[tuple[str, dict[str, Any]]] = [
    ("ECS_CANARY_ROLLOUT", {"scale": 50}),
    ("ECS_TRAFFIC_ROUTING", {"canary": 20}),
    ("ECS_PRIMARY_ROLLOUT", {}),
    ("ECS_TRAFFIC_ROUTING", {"primary": 100}),
    ("ECS_CANARY_CLEAN", {}),
]
# ECS refills the bucket of each kind of reads with 20 requests a second.
ALLOWED = 20 * 60
# Piped asks for the live state every minute, and a snapshot counts for half of one.
MINUTES, MINUTE, FRESH = 3, 60.0, 31.0


@contextmanager
def amazon() -> Iterator[str]:
    """Runs AWS in another process and yields its address."""
    command = [sys.executable, "-c", SERVER, str(TESTS)]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=quiet, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        if not url:
            raise SystemExit("the server that stands for AWS does not start")
        try:
            yield url
        finally:
            process.kill()


class Requests:
    """Counts the requests to AWS, every page of a list, and the time of those who wait for them."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.counts: Counter[str] = Counter()
        for name in ("call", "collect"):
            setattr(AwsAccount, name, self._timed(getattr(AwsAccount, name)))
        client: Any = BaseClient
        client._make_api_call = self._counted(client._make_api_call)

    def _counted(self, method: Any) -> Any:
        def counted(client: Any, operation: str, parameters: Any) -> Any:
            self.counts[operation] += 1
            return method(client, operation, parameters)

        return counted

    def _timed(self, method: Any) -> Any:
        async def timed(*args: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return await method(*args, **named)
            finally:
                self.seconds += time.perf_counter() - began

        return timed


def create_load_balancer(url: str) -> dict[str, Any]:
    """Creates a load balancer and returns the target groups of primary and canary."""
    ec2, elb = (
        boto3.client(name, region_name=REGION, endpoint_url=url) for name in ("ec2", "elbv2")
    )
    network: Any = ec2.describe_subnets()["Subnets"]
    made = elb.create_load_balancer(Name="lb", Subnets=[each["SubnetId"] for each in network[:2]])
    place = {"Protocol": "HTTP", "Port": 80, "TargetType": "ip", "VpcId": network[0]["VpcId"]}
    groups = {
        name: elb.create_target_group(Name=name, **place)["TargetGroups"][0]["TargetGroupArn"]
        for name in ("primary", "canary")
    }
    targets = [{"TargetGroupArn": arn, "Weight": 1} for arn in groups.values()]
    elb.create_listener(
        LoadBalancerArn=made["LoadBalancers"][0]["LoadBalancerArn"],
        Protocol="HTTP",
        Port=80,
        DefaultActions=[{"Type": "forward", "ForwardConfig": {"TargetGroups": targets}}],
    )
    container = {"containerName": "web", "containerPort": 80}
    return {name: {"targetGroupArn": arn, **container} for name, arn in groups.items()}


def commit(
    plugin: EcsPlugin,
    host: MemoryHost,
    url: str,
    directory: Path,
    name: str,
    groups: dict[str, Any] | None = None,
) -> StageBench:
    directory.mkdir(exist_ok=True)
    container = {"name": "web", "image": "web:v1", "memory": 128}
    task = {"family": "web", "containerDefinitions": [container]}
    service = {
        "cluster": CLUSTER,
        "serviceName": name,
        "desiredCount": 2,
        "launchType": "FARGATE",
        "deploymentController": {"type": "EXTERNAL"},
    }
    (directory / "taskdef.json").write_text(json.dumps(task))
    (directory / "service.json").write_text(json.dumps(service))
    access = {"targetGroups": groups} if groups else {"accessType": "SERVICE_DISCOVERY"}
    given = {"serviceDefinitionFile": "service.json", **access}
    spec = {"name": name, "plugins": {"ecs": {"input": given}}}
    config = {"apiVersion": "pipecd.dev/v1beta1", "kind": "Application", "spec": spec}
    target = DeployTarget("aws", {}, {"region": REGION, "endpoint": url})
    entry = PluginEntry("ecs", targets=(target,))
    return StageBench(
        plugin, directory, entry=entry, host=host, config=json.dumps(config), application_id=name
    )


async def run(bench: StageBench, stage: str, options: dict[str, Any] | None = None) -> None:
    bench.host.stage_metadata.clear()
    result = await bench.run(stage, options)
    if result.status is not StageStatus.SUCCESS:
        raise SystemExit(result.message)


async def measure(url: str, deployments: int, services: int) -> None:
    """Prints the time of deployments and the cost of services that nobody deploys."""
    requests = Requests()
    client: Any = boto3.client("ecs", region_name=REGION, endpoint_url=url)
    client.create_cluster(clusterName=CLUSTER)
    plugin, host = EcsPlugin(), MemoryHost()
    async with AsyncExitStack() as lifetime:
        directory = Path(lifetime.enter_context(tempfile.TemporaryDirectory()))
        await plugin.prepare(StartContext(PluginEntry("ecs"), host, lifetime))
        bench = commit(plugin, host, url, directory / "web", "web", create_load_balancer(url))
        await run(bench, "ECS_SYNC")
        own: list[float] = []
        requests.counts.clear()
        for _ in range(deployments):
            began, in_requests = time.perf_counter(), requests.seconds
            for stage, options in STAGES:
                await run(bench, stage, options)
            own.append(time.perf_counter() - began - (requests.seconds - in_requests))
        p50, worst = median(own), max(own)
        each = requests.counts.total() / deployments
        say(f"own time of a deployment   p50 {p50:5.2f} s   worst {worst:5.2f} s   (target: 0.5)")
        say(f"requests of a deployment   {each:8.0f}")

        benches: list[StageBench] = []
        for number in range(services):
            benches.append(commit(plugin, host, url, directory / f"s{number}", f"s{number}"))
            await run(benches[-1], "ECS_SYNC")
        now = time.monotonic()
        requests.counts.clear()
        states = [await plugin.live_state(bench.live_context()) for bench in benches]
        say(f"{services} services, first live state   {requests.counts.total():6} requests")
        requests.counts.clear()
        before = _processor_time()
        for half in range(2 * MINUTES):
            # Half of the applications are asked for in each half of a minute.
            plugin._snapshots.clock = lambda half=half: now + (half + 1) * FRESH
            asked = benches[half % 2 :: 2]
            states = [await plugin.live_state(bench.live_context()) for bench in asked]
            if {state.sync.status for state in states} != {SyncStatus.SYNCED}:
                raise SystemExit("an application is not synced")
        share = (_processor_time() - before) / (MINUTES * MINUTE)
    rates = {name: count / MINUTES for name, count in requests.counts.most_common()}
    say(f"{services} services, live state and drift   {share:6.1%} of a core   (target: 5 %)")
    for name, rate in rates.items():
        say(f"{services} services, {name:<24} {rate:6.0f} a minute   (AWS allows {ALLOWED:,})")


def say(text: str) -> None:
    """Prints a line at once: a run that is stopped later has printed what it had measured."""
    print(text, flush=True)


def _processor_time() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deployments", type=int, default=10)
    parser.add_argument("--services", type=int, default=200)
    given = parser.parse_args()
    configure("error", "console")
    os.environ |= {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench"}
    with amazon() as url:
        asyncio.run(measure(url, given.deployments, given.services))


if __name__ == "__main__":
    main()
