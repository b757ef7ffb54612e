# SPDX-License-Identifier: Apache-2.0
"""The page of closed networks and that of the installation, followed where there is only loopback.

Only the directories and the addresses differ: those of the test stand for /opt/pipecd, /var/lib and
the servers of example.com. What a connected machine downloads comes from the caches of this one.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from servers.certificates import self_signed
from servers.closed_network import ClosedNetwork, closed_network
from servers.origin import Origin
from servers.pages import GUIDE, console_blocks
from servers.polling import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
APPLICATION = """\
apiVersion: pipecd.dev/v1beta1
kind: Application
spec:
  name: ground
  plugins:
    terraform: {}
  planner: {alwaysUsePipeline: true}
  pipeline:
    stages:
      - {name: TERRAFORM_PLAN}
      - {name: TERRAFORM_APPLY}
      - {name: TCP_CHECK, with: {port: 9090}}
"""


def yaml_blocks(page: str) -> list[Any]:
    texts = re.findall(r"^```yaml\n(.*?)^```", (GUIDE / page).read_text(), re.M | re.S)
    return [yaml.safe_load(text) for text in texts]


@dataclass(frozen=True)
class Reader:
    """Follows pages inside the network."""

    network: ClosedNetwork
    machine: Path
    addresses: Mapping[str, str]

    def here(self, text: str) -> str:
        for place in ("/opt/pipecd", "/var/lib"):
            text = text.replace(place, f"{self.machine}{place}")
        for name, address in self.addresses.items():
            text = text.replace(name, address)
        return text

    async def run(self, block: str) -> str:
        done = await self.network.run(self.here(block))
        assert done.code == 0, (block, done.out, done.err)
        return done.out

    async def pipectl(self, line: str) -> Any:
        return json.loads(await self.run(f"pipectl {line}"))


def collect_release(source: Path) -> Path:
    """What the page collects on a connected machine: the release and the packages of Python."""
    subprocess.run(["git", "clone", "-q", "--no-local", str(ROOT), str(source)], check=True)
    build = "import dist, wheels, sys; sys.argv = ['dist', '--without', 'images', 'executables']; dist.main()"
    found = f"; print(*wheels.download(dist.ROOT, dist.CACHE, {os.uname().machine!r}, [{PYTHON!r}])[{PYTHON!r}], sep='\\n')"
    built = subprocess.run(
        [sys.executable, "-c", build + found],
        cwd=source, env={**os.environ, "PYTHONPATH": str(source / "tools")},
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    dist = source / "dist"
    (dist / "wheels").mkdir()
    for line in built.stdout.splitlines():
        if line.endswith(".whl") and Path(line).exists():
            shutil.copy(line, dist / "wheels")
    shutil.copy(source / "requirements" / "full.txt", dist)
    return dist


def collect_tools(dist: Path, terraform: str) -> None:
    """Terraform as its publisher packs it, and the plugin of the guide of plugins."""
    tools = dist / "tools" / "terraform" / "1.5.7"
    tools.mkdir(parents=True)
    archive = tools / "terraform_1.5.7_linux_amd64.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        packed.write(terraform, "terraform")
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    (tools / "terraform_1.5.7_SHA256SUMS").write_text(f"{digest}  {archive.name}\n")
    [plugin] = re.findall(
        r"^<!-- file: tcpcheck.py -->\n```python\n(.*?)^```$",
        (GUIDE / "plugins.md").read_text(), re.M | re.S,
    )  # fmt: skip
    (dist / "plugins").mkdir()
    (dist / "plugins" / "tcpcheck.py").write_text(plugin)


def create_application(directory: Path) -> Path:
    """A repository with an application whose state is a file; no provider is downloaded."""
    origin, state = Origin.begin(directory / "apps"), directory / "state"
    backend = f'terraform {{\n  backend "local" {{ path = "{state}" }}\n}}\n'
    resource = 'resource "terraform_data" "ground" { input = "one" }\n'
    origin.commit({"ground/app.pipecd.yaml": APPLICATION, "ground/main.tf": backend + resource})
    return state


def path_of(machine: Path) -> str:
    """What is installed, the Python of this test as `python3`, and the PATH without Terraform."""
    programs = machine / "programs"
    programs.mkdir(parents=True)
    python = Path(sys.base_exec_prefix, "bin", f"python{PYTHON}")
    (programs / "python3").symlink_to(python)
    places = [machine / "opt/pipecd/current/bin", programs]
    places += map(Path, os.environ["PATH"].split(os.pathsep))
    return os.pathsep.join(str(place) for place in places if not (place / "terraform").exists())


async def test_a_closed_network_deploys_with_what_its_own_servers_have(
    tmp_path: Path, terraform: str
) -> None:
    machine, repositories = tmp_path / "machine", tmp_path / "repositories"
    dist = collect_release(tmp_path / "source")
    collect_tools(dist, terraform)
    state = create_application(repositories)
    cert, key = self_signed(tmp_path)
    variables = {"HOME": str(machine), "PATH": path_of(machine)}
    with closed_network(variables, dist) as network:
        outside = await network.run("curl -sS --max-time 5 https://192.0.2.1/")
        assert outside.code != 0
        servers = f"{sys.executable} -m servers.closed_network {dist} {repositories} {cert} {key}"
        async with network.running(
            f"exec {servers}", PYTHONPATH=str(ROOT / "tests"), PATH=os.environ["PATH"]
        ) as mirror:
            found = await eventually(
                lambda: re.match(r"mirror (\S+) git (\S+)\n", mirror.text), within=60
            )
            addresses = {
                "https://mirror.example.com": found[1],
                "https://git.example.com/apps.git": f"{found[2]}/apps",
                "/etc/ssl/certs/example-ca.pem": cert,
            }
            await follow(Reader(network, machine, addresses), dist)
            assert "GET /tools/terraform/1.5.7/terraform_1.5.7_linux_amd64.zip" in mirror.text
            assert "GET /plugins/tcpcheck.py" in mirror.text
    assert '"one"' in state.read_text()


async def follow(reader: Reader, dist: Path) -> None:
    for block in console_blocks("air-gapped.md", "Install"):
        await reader.run(block)
    [configuration] = yaml_blocks("installation.md")
    (dist / "control-plane.yaml").write_text(reader.here(yaml.safe_dump(configuration)))
    [start] = console_blocks("installation.md", "The control plane")
    async with reader.network.running(reader.here(start)) as server:
        await eventually(lambda: "control plane ready" in server.text, within=120)
        # Of the three ways to create a project that the page has, the one without a browser.
        [add] = re.findall(r"`(pipecd project add .*?)`", (GUIDE / "installation.md").read_text())
        assert "username" in (await reader.run(add)).lower()
        for block in console_blocks("installation.md", "The first API key"):
            await reader.run(block)
        [piped] = console_blocks("installation.md", "The first piped")
        register, start = piped.splitlines()
        await reader.run(register)
        await deploy(reader, dist, start)


async def deploy(reader: Reader, dist: Path, installed: str) -> None:
    """Starts the piped as the page says, and waits for the deployment of its application."""
    file = dist / "piped.yaml"
    registered = yaml.safe_load(file.read_text())
    [sample] = yaml_blocks("air-gapped.md")
    for name in ("toolMirror", "repositories", "plugins"):
        registered["spec"][name] = sample["spec"][name]
    file.write_text(reader.here(yaml.safe_dump(registered)))
    id = registered["spec"]["pipedID"]
    [start] = console_blocks("air-gapped.md", "The piped")
    # The control plane of that page is on the same machine and serves plain HTTP.
    program, flags = installed.split(" --insecure ")
    assert program in start
    start = re.sub(r"--cert-file \S+", f"--insecure {flags}", start)
    async with reader.network.running(reader.here(start)) as piped:

        async def has_reported() -> bool:
            assert piped.process.returncode is None, piped.text
            return "repositories" in await reader.pipectl(f"piped get --piped-id {id}")

        await eventually(has_reported, within=120)
        line = f"application add --app-name ground --piped-id {id} --repo-id apps --app-dir ground"
        added = await reader.pipectl(f"{line} --deploy-target terraform=production --output json")

        async def ended() -> Any:
            line = f"deployment list --app-id {added['application_id']}"
            deployments = (await reader.pipectl(line)).get("deployments", [])
            return next((d for d in deployments if d.get("completed_at")), None)

        deployment = await eventually(ended, within=120)
    assert deployment["status"] == 4, (deployment.get("status_reason"), piped.text)
