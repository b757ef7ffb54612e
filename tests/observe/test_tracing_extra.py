# SPDX-License-Identifier: Apache-2.0
"""Without the extra `tracing` the programs say what to install.

Every test runs the program in a process of its own, in which OpenTelemetry cannot be imported.
"""

import json
import subprocess
import sys
from pathlib import Path

from servers.server import free_port

BLOCK = "import sys; sys.modules['opentelemetry'] = None\n"
SERVER = "from pipecd.cli import main; sys.argv = ['pipecd', 'server', *sys.argv[1:]]; main()"
DEPLOYMENT = """
import asyncio
from pipecd.observe import log
from pipecd.observe.deployments import DeploymentTraces
from pipecd.proto.model.deployment_pb2 import Deployment

async def export(request):
    raise AssertionError("nothing is exported")

async def main():
    log.configure(encoding="json", program="piped", to=sys.stdout)
    traces = DeploymentTraces({}, export)
    for id in ("d1", "d2"):
        deployment = Deployment(id=id, application_id="a", status=2)
        with traces.plan(deployment), traces.deploy(deployment):
            pass
    await traces.shutdown()

asyncio.run(main())
"""


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BLOCK + script, *arguments],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


def test_a_server_with_traces_names_the_extra_to_install(tmp_path: Path) -> None:
    spec = {
        "address": "http://127.0.0.1",
        "stateKey": "s",
        "datastore": {"type": "SQLITE", "config": {"path": str(tmp_path / "pipecd.db")}},
        "filestore": {"type": "LOCAL", "config": {"path": str(tmp_path / "files")}},
    }
    config, key = tmp_path / "control-plane.yaml", tmp_path / "key"
    document = {"apiVersion": "pipecd.dev/v1beta1", "kind": "ControlPlane", "spec": spec}
    config.write_text(json.dumps(document))
    key.write_text("k" * 64)
    done = run(
        SERVER,
        f"--config-file={config}",
        f"--encryption-key-file={key}",
        "--traces",
        f"--trace-collector-address=127.0.0.1:{free_port()}",
    )
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert "--traces needs OpenTelemetry; install the extra tracing of pipecd" in done.stderr


def test_a_piped_logs_once_what_to_install_and_deploys_without_traces() -> None:
    done = run(DEPLOYMENT)
    assert done.returncode == 0, done.stderr
    (line,) = (json.loads(line) for line in done.stdout.splitlines())
    assert line["message"] == "deployments are not traced"
    assert line["remedy"] == "install the extra tracing of pipecd"
