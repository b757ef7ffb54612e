# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a configuration is one of the first lines that a piped logs."""

import asyncio
import json
from pathlib import Path

import pytest

from pipecd.wire.server import TlsFiles
from servers.control_plane import StartControlPlane
from servers.origin import NewOrigin
from servers.piped import piped_config
from servers.programs import OUR_PIPED

pytestmark = pytest.mark.slow


async def first_warning(config: Path, *flags: str) -> str:
    """The text of the first line of a piped whose level is a warning or worse."""
    process = await asyncio.create_subprocess_exec(
        OUR_PIPED, "run", f"--config-file={config}", f"--workspace-dir={config.parent / 'work'}",
        "--admin-port=0", "--admin-host=127.0.0.1", "--log-encoding=json", *flags,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    try:
        async with asyncio.timeout(60):
            async for line in process.stderr:
                fields = json.loads(line)
                if fields["severity"] != "INFO":
                    return line.decode()
    finally:
        if process.returncode is None:
            process.terminate()
        await process.communicate()
    pytest.fail("piped ended without a warning")


async def test_mistakes_are_logged_with_what_to_do(
    start_plane: StartControlPlane, new_origin: NewOrigin, tmp_path: Path
) -> None:
    origin = new_origin("site")
    origin.commit({"README": ""})
    config = tmp_path / "piped.yaml"
    async with start_plane() as plane:
        piped = await plane.register_piped()

        def write(remote: str, more: str = "") -> None:
            text = piped_config(
                piped.id,
                piped.key,
                address=plane.address,
                remote=remote,
                project=plane.admin.project,
                rest=more,
            )
            config.write_text(text)

        write(origin.remote)
        line = await first_warning(config)
        assert f"{plane.address} speaks plain text, not TLS; add --insecure" in line

        write(str(tmp_path / "nowhere"))
        line = await first_warning(config, "--insecure")
        assert "the repository was not found" in line
        assert "check repositories[].remote" in line

        write(origin.remote, "  plugins: [{name: wiat}]\n")
        line = await first_warning(config, "--insecure")
        assert "no built-in plugin is named wiat" in line
        assert "did you mean" in line

        await piped.add_repository("gone", origin.remote)
        await piped.add_application("cart", repository="gone")
        write(origin.remote)
        line = await first_warning(config, "--insecure")
        assert "repository 'gone' is not in the configuration of this piped" in line
        assert "add it under repositories" in line


async def test_insecure_at_a_control_plane_with_tls_is_logged(
    start_plane: StartControlPlane, certificate: tuple[str, str], tmp_path: Path
) -> None:
    config = tmp_path / "piped.yaml"
    async with start_plane(tls=TlsFiles(*certificate)) as plane:
        config.write_text(piped_config("p", "k", address=plane.address, remote=str(tmp_path)))
        line = await first_warning(config, "--insecure")
        assert f"{plane.address} speaks TLS, not plain text; leave out --insecure" in line
