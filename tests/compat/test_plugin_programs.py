# SPDX-License-Identifier: Apache-2.0
"""A third-party plugin, downloaded over TLS: the plugin crashes, piped crashes, deployments continue."""

import asyncio
import hashlib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pipecd.model.deployment import DeploymentStatus
from pipecd.proto.model.application_pb2 import Application
from servers.our_installation import OpenInstallation, OurInstallation
from servers.programs import OUR_PIPED
from servers.registry import OciRegistry

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PLUGIN = f'''#!{sys.executable}
"""Dies, or waits for a file, the first time that it runs."""
import asyncio, os, signal
from pathlib import Path
from pipecd.sdk import Spec, Stage, StageContext, StagePlugin, StageResult, serve

class Options(Spec):
    do: str
    file: str = ""

class Fragile(StagePlugin):
    stages = (Stage("FRAGILE", Options),)

    async def execute(self, stage: StageContext) -> StageResult:
        options = stage.options(Options)
        times = int(await stage.metadata.get("times") or 0) + 1
        await stage.metadata.put({{"times": str(times)}})
        if options.do == "die" and times == 1:
            print("something broke", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        if options.do == "wait" and times == 1:
            Path(options.file).write_text(str(os.getpid()))
            await stage.run(["sleep", "600"])
        return StageResult.succeeded(f"run {{times}} is the last")

serve(Fragile)
'''.encode()


def app(do: str, file: Path) -> dict[str, str]:
    text = (
        "{apiVersion: pipecd.dev/v1beta1, kind: Application, spec: {name: cart, pipeline: "
        f"{{stages: [{{name: FRAGILE, with: {{do: {do}, file: '{file}'}}}}]}}, "
        "planner: {alwaysUsePipeline: true}}}"
    )
    return {"cart/app.pipecd.yaml": text}


def is_alive(pid: int) -> bool:
    return state_of(pid)[0] not in "Z?"


def state_of(pid: int) -> list[str]:
    """The state of a process, its parent and its group."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:3]
    except OSError:
        return ["?", "0", "0"]


async def family_of(plugin: int) -> list[int] | None:
    """A plugin, its guard, and the program that it runs, once that runs."""
    pids = [int(path.name) for path in await asyncio.to_thread(processes)]
    found = [pid for pid in pids if pid == plugin or str(plugin) in state_of(pid)]
    return found if len(found) >= 3 else None


def processes() -> list[Path]:
    return list(Path("/proc").glob("[0-9]*"))


async def test_deaths_cost_time_and_nothing_else(
    open_installation: OpenInstallation,
    tls_registry: OciRegistry,
    certificate: tuple[str, str],
    free_port: Callable[[], int],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", certificate[0])
    tls_registry.files["fragile"] = PLUGIN
    checksum = f"sha256:{hashlib.sha256(PLUGIN).hexdigest()}"
    entry = (
        f"{{name: fragile, url: '{tls_registry.address}/files/fragile', checksum: '{checksum}'}}"
    )
    async with open_installation() as installation:
        agent = await installation.register_piped("ours", f"  plugins: [{entry}]\n")
        await installation.add_application("cart", Application(name="cart", piped_id=agent.id))
        flags = ("run", f"--config-file={agent.config}", "--insecure=true", "--admin-port=0",
                 f"--plugin-service-port={free_port()}", f"--plugins-dir={tmp_path / 'kept'}")  # fmt: skip
        first = installation.origin.commit(app("die", tmp_path / "pid"))
        waiting = await start_and_die(installation, flags, first, tmp_path / "pid")
        assert tls_registry.requests == ["GET /files/fragile"]
        async with installation.running(OUR_PIPED, *flags) as piped:
            done = await installation.eventually(lambda: installation.ended(waiting), piped)
            assert DeploymentStatus(done.status) is DeploymentStatus.SUCCESS, done.status_reason
            assert "run 2 is the last" in (await installation.logs(done))["FRAGILE"]
        assert tls_registry.requests == ["GET /files/fragile"], "the second piped had it already"


async def start_and_die(
    installation: OurInstallation, flags: tuple[str, ...], first: str, file: Path
) -> str:
    """The first run of piped, which ends during the second deployment."""
    second, killed = "", False
    try:
        async with installation.running(OUR_PIPED, *flags) as piped:
            done = await installation.eventually(lambda: installation.ended(first), piped)
            assert DeploymentStatus(done.status) is DeploymentStatus.SUCCESS, done.status_reason
            log = (await installation.logs(done))["FRAGILE"]
            assert "plugin fragile was ended by SIGKILL, its last output was:" in log
            assert "something broke" in log
            assert "run 2 is the last" in log
            second = installation.origin.commit(app("wait", file))
            plugin = int(await installation.eventually(lambda: content(file), piped))
            family = await installation.eventually(lambda: family_of(plugin), piped)
            piped.process.kill()
            async with asyncio.timeout(10):
                while any(is_alive(pid) for pid in family):  # noqa: ASYNC110 - not our children
                    await asyncio.sleep(0.02)
            killed = True
    except AssertionError:
        # A piped that was killed did not end well; anything before that is a failure.
        if not killed:
            raise
    return second


async def content(file: Path) -> str | None:
    return await asyncio.to_thread(lambda: file.read_text() if file.exists() else None)
