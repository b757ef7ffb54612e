# SPDX-License-Identifier: Apache-2.0
"""The program `launcher`: its status page, and that its piped ends with it."""

import asyncio
import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from launcher.setup import NO_HELP
from pipecd.wire.server import TlsFiles
from servers.control_plane import StartControlPlane
from servers.piped import piped_config
from servers.polling import eventually
from servers.programs import OUR_LAUNCHER
from servers.server import free_port, is_running


@dataclass
class Launched:
    """A running launcher, its admin port, and the file to which its piped writes its arguments."""

    process: asyncio.subprocess.Process
    port: int
    trace: Path

    async def status(self) -> dict[str, Any]:
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{self.port}") as http:
            return (await http.get("/status")).json()

    @property
    def piped(self) -> int:
        return int(self.trace.read_text().split()[0])

    async def ends(self) -> int:
        async with asyncio.timeout(20):
            return await self.process.wait()


Launch = Callable[[], AbstractAsyncContextManager[Launched]]


@pytest.fixture
def launch(start_plane: StartControlPlane, tmp_path: Path) -> Launch:
    @asynccontextmanager
    async def launched() -> AsyncGenerator[Launched]:
        trace, port = tmp_path / "trace", free_port()
        program = tmp_path / "piped_v1"
        program.write_text(
            f'#!/bin/sh\n{NO_HELP}echo "$$ $*" > {trace}.new\nmv {trace}.new {trace}\nexec sleep 100\n'
        )
        program.chmod(0o755)
        async with start_plane() as plane:
            piped = await plane.register_piped()
            config = tmp_path / "piped.yaml"
            config.write_text(
                piped_config(
                    piped.id,
                    piped.key,
                    address=plane.address,
                    remote=str(tmp_path / "site"),
                    project=plane.admin.project,
                )
            )
            process = await asyncio.create_subprocess_exec(
                OUR_LAUNCHER, "launcher", "--config-file", str(config), "--default-version=v1",
                f"--piped-release=file://{tmp_path}/piped_{{version}}", "--insecure",
                "--launcher-admin-port", str(port), f"--home-dir={tmp_path / 'home'}",
                "--tools-dir", "tools",
            )  # fmt: skip
            try:
                await eventually(trace.exists, 20)
                yield Launched(process, port, trace)
            finally:
                if process.returncode is None:
                    process.kill()
                await process.wait()

    return launched


async def test_status_names_the_running_version_and_other_flags_are_passed_to_piped(
    launch: Launch,
) -> None:
    async with launch() as running:
        status = await running.status()
        words = running.trace.read_text().split()[1:]
        running.process.terminate()
        assert await running.ends() == 0
    assert (status["desired"], status["running"], status["error"]) == ("v1", "v1", "")
    assert [word.partition("=")[0] for word in words] == [
        "run", "--config-file", "--launcher-version", "--insecure", "--tools-dir", "tools",
    ]  # fmt: skip


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
async def test_its_piped_never_outlives_it(launch: Launch, how: signal.Signals) -> None:
    async with launch() as running:
        piped = running.piped
        assert is_running(piped)
        running.process.send_signal(how)
        assert await running.ends() == (-9 if how is signal.SIGKILL else 0)
        await eventually(lambda: not is_running(piped), 20)


async def test_a_configuration_error_is_printed_on_one_line(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        OUR_LAUNCHER, "launcher", f"--config-file={tmp_path / 'missing.yaml'}", "--piped-release=nowhere",
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    _, stderr = await process.communicate()
    assert process.returncode == 1
    assert len(stderr.decode().strip().splitlines()) == 1


async def first_line(config: Path, home: Path, *flags: str) -> str:
    """What a launcher logs first."""
    process = await asyncio.create_subprocess_exec(
        OUR_LAUNCHER, "launcher", "--config-file", str(config), f"--home-dir={home}", *flags,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    line = (await process.stderr.readline()).decode()
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.terminate()
    await process.communicate()
    return line


@pytest.mark.slow
async def test_why_a_launcher_does_not_start_is_logged_at_once(
    start_plane: StartControlPlane, certificate: tuple[str, str], tmp_path: Path
) -> None:
    config, cert_file = tmp_path / "piped.yaml", certificate[0]
    async with start_plane(tls=TlsFiles(*certificate)) as plane:
        text = piped_config(
            "no-such-piped", "key", address=plane.address, remote="/x", project="demo"
        )
        config.write_text(text)
        line = await first_line(config, tmp_path / "home")
        assert f"the certificate of {plane.address} is not trusted" in line
        line = await first_line(config, tmp_path / "home", "--insecure")
        assert f"{plane.address} speaks TLS, not plain text; leave out --insecure" in line
        line = await first_line(config, tmp_path / "home", "--cert-file", cert_file)
        assert "the control plane does not accept the key of this piped" in line
        assert "projectID or pipedID" in line
