# SPDX-License-Identifier: Apache-2.0
"""The flags and the configuration sources of piped."""

import asyncio
import base64
import signal
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import boto3
import pytest

from pipecd.model.errors import UserMistake
from pipecd.piped.command import run, settings_of
from servers.control_plane import OpenControlPlane
from servers.objects import S3
from servers.origin import Origin
from servers.piped import piped_config, started_piped
from servers.polling import eventually
from servers.server import free_port

STUBBORN = """\
apiVersion: pipecd.dev/v1beta1
kind: Application
spec:
  name: cart
  pipeline:
    stages:
      - name: SCRIPT_RUN
        with: {run: "trap '' TERM; echo $$ > TRACE; while :; do sleep 1; done"}
"""


def write_config(
    directory: Path, id_: str = "p", key: str = "key", address: str = "localhost:1", remote: str = "file:///nowhere"
) -> Path:  # fmt: skip
    path = directory / "piped.yaml"
    rest = "  syncInterval: 1s\n"
    path.write_text(piped_config(id_, key, address=address, remote=remote, rest=rest))
    return path


def settings(tmp_path: Path, *flags: str) -> Any:
    arguments = ["--config-file", str(write_config(tmp_path)), *flags]
    return settings_of(run.make_context("run", arguments).params)


def test_a_flag_adds_the_cluster_that_piped_runs_in_as_a_deploy_target(tmp_path: Path) -> None:
    assert settings(tmp_path).config.spec.plugins == ()
    (plugin,) = settings(
        tmp_path, "--enable-default-kubernetes-cloud-provider=true"
    ).config.spec.plugins
    assert plugin.name == "kubernetes"
    assert [target.name for target in plugin.deploy_targets] == ["kubernetes-default"]


def test_flags_become_settings(tmp_path: Path) -> None:
    given = settings(tmp_path, "--grace-period=90s", "--metrics=false", "--launcher-version=v1")
    assert (given.grace, given.with_metrics, given.launcher_version) == (90, False, "v1")


def test_the_configuration_may_come_from_aws(tmp_path: Path, aws: S3) -> None:
    content = write_config(tmp_path, "of-aws").read_bytes()
    secrets: Any = boto3.client("secretsmanager")
    name = f"piped-{tmp_path.name}"
    secrets.create_secret(Name=name, SecretString=base64.b64encode(content).decode())
    given = run.make_context("run", ["--config-aws-secret", name]).params
    assert settings_of(given).config.spec.piped_id == "of-aws"


def test_exactly_one_configuration_source_is_required() -> None:
    with pytest.raises(UserMistake, match=r"at least one of the flags in the group \[config-file "):
        settings_of(run.make_context("run", []).params)
    two = ["--config-aws-ssm-parameter=a", "--config-data=b"]
    error = r"\[config-aws-ssm-parameter config-data\] were all set"
    with pytest.raises(UserMistake, match=error):
        settings_of(run.make_context("run", two).params)


def piped(
    plane: Any, remote: str, *flags: str
) -> AbstractAsyncContextManager[asyncio.subprocess.Process]:
    made = plane.piped
    return started_piped(write_config(plane.directory, made.id, made.key, plane.address, remote), *flags)  # fmt: skip


async def page(port: int, path: str) -> str:
    """Returns a page of the admin port once it is served."""
    async with asyncio.timeout(30):
        while True:
            try:
                reader, writer = await asyncio.open_connection("localhost", port)
                break
            except OSError:
                await asyncio.sleep(0.05)
        writer.write(f"GET {path} HTTP/1.1\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
    return answer.decode().partition("\r\n\r\n")[2]


@pytest.mark.slow
@pytest.mark.parametrize("metrics", ["true", "false"])
async def test_metrics_carry_the_labels_of_the_piped(
    open_plane: OpenControlPlane, origin: Origin, metrics: str
) -> None:
    origin.commit()
    port = free_port()
    flags = [f"--admin-port={port}", f"--metrics={metrics}", "--launcher-version=v9"]
    async with open_plane() as plane, piped(plane, origin.remote, *flags):
        shown = await page(port, "/metrics")
        if metrics == "false":
            assert shown == ""
            return
        (line,) = [line for line in shown.splitlines() if line.startswith("process_open_fds{")]
        for label in (
            'pipecd_component="piped"',
            'project="shop"',
            f'piped="{plane.piped.id}"',
            'launcher_version="v9"',
            "piped_version=",
        ):
            assert label in line


@pytest.mark.slow
async def test_piped_ends_within_its_grace_period(
    open_plane: OpenControlPlane, origin: Origin
) -> None:
    async with open_plane() as plane:
        trace = plane.directory / "trace"
        origin.commit({"cart/app.pipecd.yaml": STUBBORN.replace("TRACE", str(trace))})
        await plane.piped.add_repository("site", origin.remote)
        await plane.piped.add_application("cart")
        flags = ["--admin-port=0", "--grace-period=500ms"]
        async with piped(plane, origin.remote, *flags) as process:
            await eventually(lambda: trace.exists() and trace.read_text().strip(), 30)
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(5):
                assert await process.wait() == 1
        script = Path(f"/proc/{trace.read_text().strip()}")
        await eventually(lambda: not script.exists(), 5)
