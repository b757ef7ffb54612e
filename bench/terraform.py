# SPDX-License-Identifier: Apache-2.0
"""Time from a push to SUCCESS of a Terraform application, and the cost of idle applications.

The application has one `terraform_data` and a local backend. The time includes `init`, since every
push changes the configuration, `plan` and `apply`; beside it are `init` and `apply` by hand. Then
measures how much processor time drift detection of many unchanged applications takes, of the
plugin and of the commands that it runs.
"""

import argparse
import asyncio
import os
import resource
import subprocess
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median

from pipecd.observe.log import configure
from pipecd.plugins.terraform.plugin import TerraformPlugin
from pipecd.sdk import DeployTarget, PluginEntry, StageStatus, StartContext, SyncStatus
from pipecd.sdk.testing import MemoryHost, StageBench
from push import Clone, piped, plane, wait_for_success
from rig.cluster import NotInstalled, program

APP = """\
apiVersion: pipecd.dev/v1beta1
kind: Application
spec: {name: hello, plugins: {terraform: {}}}
"""
# Piped asks for the live state every minute, and a plan counts for ten minutes.
POLLS, INTERVAL = 10, 600.0


def configuration(state: Path, value: str) -> str:
    return (
        f'terraform {{\n  backend "local" {{\n    path = "{state}"\n  }}\n}}\n'
        f'resource "terraform_data" "web" {{\n  input = "{value}"\n}}\n'
    )


async def pushes(count: int) -> None:
    """Prints how long whole processes take to deploy."""
    taken: list[float] = []
    async with AsyncExitStack() as lifetime:
        directory = Path(lifetime.enter_context(tempfile.TemporaryDirectory()))
        clone = Clone(directory)
        (clone.tree / "hello" / "app.pipecd.yaml").write_text(APP)
        running = await lifetime.enter_async_context(plane(directory))
        provider = {"name": "p", "type": "TERRAFORM", "config": {}}
        remote = f"file://{clone.bare}"
        await lifetime.enter_async_context(
            piped(running, directory, remote, platformProviders=[provider])
        )
        for number in range(count + 2):
            text = configuration(directory / "state", f"v{number}")
            (clone.tree / "hello" / "main.tf").write_text(text)
            commit = await asyncio.to_thread(clone.push, f"push {number}")
            began = time.perf_counter()
            taken.append(await wait_for_success(running, commit) - began)
    # The first two are warm-up.
    p50, worst = median(taken[2:]), max(taken[2:])
    print(f"push to SUCCESS          p50 {p50:5.2f} s   worst {worst:5.2f} s   (target: 4 s)")


def by_hand(count: int) -> None:
    """Prints how long `init` and `apply` of the same configuration take in a shell."""
    taken: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        for number in range(count + 2):
            # A new working copy, as after a push.
            working_copy = directory / f"copy-{number}"
            working_copy.mkdir()
            text = configuration(directory / "state", f"v{number}")
            (working_copy / "main.tf").write_text(text)
            began = time.perf_counter()
            for arguments in (["init", "-input=false"], ["apply", "-input=false", "-auto-approve"]):
                command = ["terraform", *arguments]
                subprocess.run(command, cwd=working_copy, check=True, stdout=subprocess.DEVNULL)
            taken.append(time.perf_counter() - began)
    p50, worst = median(taken[2:]), max(taken[2:])
    print(f"init and apply by hand   p50 {p50:5.2f} s   worst {worst:5.2f} s")


def processor_time() -> float:
    """Returns the processor time of this process and of the commands that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


async def idle(count: int) -> None:
    """Prints the share of a core that drift detection of so many applications takes."""
    plugin, host = TerraformPlugin(), MemoryHost()
    async with AsyncExitStack() as lifetime:
        directory = Path(lifetime.enter_context(tempfile.TemporaryDirectory()))
        entry = PluginEntry("terraform", targets=(DeployTarget("p", {}, {}),))
        await plugin.prepare(StartContext(entry, host, lifetime))
        benches: list[StageBench] = []
        for number in range(count):
            working_copy = directory / f"app-{number}"
            working_copy.mkdir()
            text = configuration(directory / f"state-{number}", "v1")
            (working_copy / "main.tf").write_text(text)
            application = f"app-{number}"
            benches.append(
                StageBench(plugin, working_copy, entry=entry, application_id=application)
            )
        for bench in benches:
            result = await bench.run("TERRAFORM_APPLY")
            if result.status is not StageStatus.SUCCESS:
                raise SystemExit(result.message)
        before = processor_time()
        for _ in range(POLLS):
            states = await asyncio.gather(*(plugin.live_state(b.live_context()) for b in benches))
            if {state.sync.status for state in states} != {SyncStatus.SYNCED}:
                raise SystemExit("an application is not synced")
        share = (processor_time() - before) / INTERVAL
    print(f"{count} idle applications   {share:6.1%} of a core   (target: 5 %)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pushes", type=int, default=10)
    parser.add_argument("--applications", type=int, default=100)
    given = parser.parse_args()
    configure("error", "console")
    try:
        found = Path(program("terraform")).parent
    except NotInstalled as e:
        print(f"skipped: {e}")
        return
    os.environ["PATH"] = f"{found}{os.pathsep}{os.environ['PATH']}"
    os.environ.pop("TF_CLI_CONFIG_FILE", None)
    by_hand(given.pushes)
    asyncio.run(pushes(given.pushes))
    asyncio.run(idle(given.applications))


if __name__ == "__main__":
    main()
