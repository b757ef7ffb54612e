# SPDX-License-Identifier: Apache-2.0
"""The images of a release: their bytes, their content, and a container engine that runs them.

Packages of Debian are downloaded, so these tests are long; the engine is one of their own.
"""

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from servers import upstream_tasks
from servers.docker import Docker, docker_daemon
from servers.layout import Pipectl, create_repository
from servers.pages import console_blocks
from servers.polling import eventually
from servers.programs import NotInstalled, built_program, find, skip_or_fail
from servers.server import free_ports

ROOT = Path(__file__).parents[2]
TAG = "v0.1.0"
SERVER, PIPED, LAUNCHER = (
    f"localhost/{name}:{TAG}" for name in ("pipecd-server", "piped", "launcher")
)
# As the layouts run every container.
HARDENED = ("--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges")

# One process builds the images for all tests.
pytestmark = [
    pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1800), pytest.mark.xdist_group("images")
]  # fmt: skip


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two builds of the images from the same packages of Debian."""
    if shutil.which("mmdebstrap") is None or not (ROOT / ".git").exists():
        pytest.skip("images need mmdebstrap and a Git repository")
    debian = tmp_path_factory.mktemp("debian")
    download = (
        "import images, pathlib, sys; images.download_packages(pathlib.Path(sys.argv[1]), 'amd64')"
    )
    subprocess.run(
        [sys.executable, "-c", download, str(debian)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "tools")}, check=True,
    )  # fmt: skip
    built: list[Path] = []
    # Both builds are of one commit, also if somebody commits between them.
    source = ROOT
    for name in ("one", "two"):
        clone = tmp_path_factory.mktemp("images") / name
        subprocess.run(["git", "clone", "-q", "--no-local", str(source), str(clone)], check=True)
        source = clone
        options = ["--without", "executables", "--python", "3.11", "--architecture", "amd64"]
        subprocess.run(
            [sys.executable, "tools/dist.py", *options, "--debian-packages", str(debian)],
            cwd=clone, check=True, capture_output=True,
        )  # fmt: skip
        built.append(clone / "dist")
    return built[0], built[1]


def archive(release: Path, name: str) -> Path:
    return release / f"{name}_{TAG}_linux_amd64.tar"


def read(file: Path) -> tuple[dict[str, Any], list[tarfile.TarInfo]]:
    """The settings of an image, and the files of all layers."""
    found: list[tarfile.TarInfo] = []
    with tarfile.open(file) as outer:

        def blob(digest: str) -> Any:
            content = outer.extractfile(f"blobs/sha256/{digest.removeprefix('sha256:')}")
            assert content is not None
            return content

        index = json.load(outer.extractfile("index.json") or pytest.fail("no index"))
        manifest = json.load(blob(index["manifests"][0]["digest"]))
        config = json.load(blob(manifest["config"]["digest"]))
        for layer, plain in zip(manifest["layers"], config["rootfs"]["diff_ids"], strict=True):
            content = blob(layer["digest"]).read()
            assert hashlib.sha256(content).hexdigest() == layer["digest"].removeprefix("sha256:")
            with tarfile.open(fileobj=blob(layer["digest"]), mode="r:gz") as inner:
                found += inner.getmembers()
            assert plain.startswith("sha256:")
    return config, found


@pytest.mark.parametrize("name", ["pipecd-server", "piped", "launcher"])
def test_images_are_the_same_bytes_without_privileges(
    name: str, releases: tuple[Path, Path]
) -> None:
    one, two = (archive(release, name).read_bytes() for release in releases)
    assert hashlib.sha256(one).hexdigest() == hashlib.sha256(two).hexdigest()
    config, files = read(archive(releases[0], name))
    assert config["config"]["User"] == "1000:0"
    names = {file.name for file in files}
    assert {"bin/sh", "bin/sed", "bin/base64", "usr/local/bin/pipecd"} <= names
    assert not any("perl" in Path(file).name for file in names if file.startswith("usr/bin/"))
    assert [file.name for file in files if file.mode & 0o6000 or file.isdev()] == []
    writable = {f.name for f in files if f.uid != 0 or (f.isfile() and f.mode & 0o022)}
    assert {name.partition("/")[0] for name in writable} <= {"home", "var"}
    assert len(one) < 110_000_000


@pytest.fixture(scope="module")
def docker(releases: tuple[Path, Path]) -> Iterator[Docker]:
    """A Docker daemon of our own that has the images."""
    with docker_daemon() as docker:
        for name in ("pipecd-server", "piped", "launcher"):
            docker("load", "-i", str(archive(releases[0], name)))
        yield docker


def test_a_container_runs_with_a_read_only_root(docker: Docker) -> None:
    script = (
        "id -u; echo aGVsbG8K | base64 -d | sed s/hello/bye/; pipecd version; touch /usr/x 2>&1"
    )
    ran = docker(
        "run", "--rm", *HARDENED, "--entrypoint", "sh", SERVER, "-c", f"{script} || true"
    ).splitlines()  # fmt: skip
    assert ran[:2] == ["1000", "bye"]
    assert ran[2].startswith("Version: v0.1.0")
    assert ran[3].endswith("Read-only file system")


class Layout:
    """A layout of the guide in a copy of `deploy/`, where a shell runs the commands of the page."""

    def __init__(self, docker: Docker, machine: Path, place: str, files: str) -> None:
        self.docker, self.machine, self.directory = docker, machine, machine / place
        shutil.copytree(ROOT / "deploy", machine / "deploy")
        self.port, self.ops_port = free_ports(2)
        self.variables = {
            "COMPOSE_FILE": files,
            "PIPECD_PORT": str(self.port),
            "PIPECD_OPS_PORT": str(self.ops_port),
        }

    def run(self, block: str) -> str:
        # The first block of a section begins where the repository is.
        directory = self.machine if block.startswith("cd ") else self.directory
        return self.docker.run(block, directory, self.variables)

    @property
    def pipectl(self) -> Pipectl:
        """pipectl of this machine, connected to the published port."""
        return Pipectl(self.port, (self.directory / "api-key").read_text())

    def facts(self, service: str, template: str) -> str:
        """What Docker says about the container of a service."""
        container = self.run(f"docker compose ps -q {service}").strip()
        return self.docker("inspect", "-f", template, container).strip()


def add_git_server(directory: Path) -> None:
    """Adds a container that serves the repository of an application."""
    create_repository(directory / "apps")
    subprocess.run(["chmod", "-R", "a+rX", str(directory / "apps")], check=True)
    daemon = ["git", "-c", "safe.directory=*", "daemon", "--export-all", "--base-path=/srv"]
    service = {"image": PIPED, "entrypoint": daemon, "volumes": ["./apps:/srv/apps:ro"]}
    (directory / "git.yaml").write_text(yaml.safe_dump({"services": {"git": service}}))


def edit(text: str, *repositories: str) -> str:
    """The configuration of a piped with the address and the repositories that a reader writes."""
    text = re.sub(r"apiAddress: .*", "apiAddress: server:9090", text)
    entries = (f"{{repoID: {id}, remote: git://git/apps, branch: main}}" for id in repositories)
    return re.sub(r"repositories: .*", f"repositories: [{', '.join(entries)}]", text)


@pytest.fixture(scope="module")
def all_in_one(docker: Docker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Layout]:
    """The control plane of the first layout of the page, with an API key."""
    machine = tmp_path_factory.mktemp("machine")
    layout = Layout(docker, machine, "deploy/compose", "compose.yaml:git.yaml")
    [settings, start, *_] = console_blocks("compose.md", "All in one")
    (layout.directory / ".env").write_text(settings)
    add_git_server(layout.directory)
    try:
        layout.run(start)
        layout.run("docker compose up -d git")
        yield layout
    finally:
        layout.run("docker compose --profile piped down -v")


async def test_the_commands_of_the_page_deploy_back_up_and_restore(all_in_one: Layout) -> None:
    [_, _, connect, back_up, restore] = console_blocks("compose.md", "All in one")
    config = all_in_one.directory / "piped.yaml"
    assert config.stat().st_mode & 0o077 == 0
    text = edit(config.read_text(), "apps")
    config.write_text(text)
    all_in_one.run(connect)
    [id] = re.findall(r"pipedID: (\S+)", text)
    await all_in_one.pipectl.deploy(id)
    all_in_one.run(back_up)
    archive = all_in_one.directory / "pipecd.tar.gz"
    assert archive.stat().st_mode & 0o077 == 0
    with tarfile.open(archive) as backup:
        assert {"./pipecd.db", "./encryption-key"} <= set(backup.getnames())

    async def is_disabled() -> bool:
        return "applications" in await all_in_one.pipectl("application list --disabled")

    # What happens after a backup is not in it.
    all_in_one.run("docker compose up -d --wait server")
    [application] = (await all_in_one.pipectl("application list"))["applications"]
    await all_in_one.pipectl(f"application disable --app-id {application['id']} --output json")
    assert await is_disabled()
    all_in_one.run(restore)
    all_in_one.run("docker compose up -d --wait server")
    assert not await is_disabled()
    applications = (await all_in_one.pipectl("application list"))["applications"]
    assert [application["name"] for application in applications] == ["web"]


async def test_the_launcher_runs_a_piped_that_deploys(all_in_one: Layout, tmp_path: Path) -> None:
    docker, pipectl = all_in_one.docker, all_in_one.pipectl
    config = tmp_path / "piped.yaml"
    id = (await pipectl(f"piped register --name launched --config-out {config}"))["id"]
    config.write_text(edit(config.read_text(), "apps"))
    os.chown(config, 1000, 1000)
    docker(
        "run", "-d", "--name=launcher", *HARDENED, "--network=compose_default",
        f"--volume={config}:/etc/piped/piped.yaml:ro", LAUNCHER,
        "launcher", "--config-file=/etc/piped/piped.yaml", "--insecure",
        "--launcher-admin-port=9089", "--check-interval=1s",
    )  # fmt: skip
    try:
        await pipectl.deploy(id)
        # A piped with the new configuration takes over from the running one.
        config.write_text(edit(config.read_text(), "apps", "more"))
        await pipectl.deploy(id, "more")
        log = docker.run("docker logs launcher 2>&1", tmp_path)
        assert log.count("starting piped") == 2
        status = docker("exec", "launcher", "wget", "-qO-", "http://127.0.0.1:9089/status")
        assert json.loads(status)["running"] == TAG
        script = "id -u; touch /usr/x 2>&1 || true"
        [user, refused] = docker("exec", "launcher", "sh", "-c", script).splitlines()
        assert (user, refused.endswith("Read-only file system")) == ("1000", True)
        docker("stop", "--time=60", "launcher")
        assert docker("inspect", "-f", "{{.State.ExitCode}}", "launcher").strip() == "0"
    finally:
        docker("rm", "-f", "-v", "launcher")


# What the image of MySQL does with its variables. Dolt has the dialect of MySQL 8.
MYSQL = """\
#!/usr/bin/sh -e
export DOLT_ROOT_HOST=% DOLT_ROOT_PASSWORD="$MYSQL_ROOT_PASSWORD"
mkdir -p "/var/lib/mysql/$MYSQL_DATABASE"
cd "/var/lib/mysql/$MYSQL_DATABASE"
test -d .dolt || dolt init
exec dolt sql-server --host 0.0.0.0 --port 3306 --data-dir /var/lib/mysql
"""
# What the image of MinIO does with its variables, by another S3 server.
MINIO = """\
#!/usr/bin/sh -e
test "$1" = server
exec rclone serve s3 --addr :9000 --auth-key "$MINIO_ROOT_USER,$MINIO_ROOT_PASSWORD" "$2"
"""
DOLT_SETTINGS = {"user.name": "t", "user.email": "t@example.com", "metrics.disabled": "true"}


def create_component_images(docker: Docker, names: Mapping[str, str]) -> None:
    """Creates images of the servers of this machine with the names of those of a Compose file."""
    sh, mkdir = find("sh"), find("mkdir")
    docker.create_image(names["gateway"], [built_program("envoy")], [])
    docker.create_image(
        names["mysql"], [built_program("dolt"), sh, mkdir], ['ENTRYPOINT ["/start"]'],
        {"/start": MYSQL, "/home/.dolt/config_global.json": json.dumps(DOLT_SETTINGS)},
    )  # fmt: skip
    # The public image listens to everybody in its network too.
    command = 'CMD ["redis-server", "--protected-mode", "no"]'
    docker.create_image(names["redis"], [find("redis-server")], [command])
    docker.create_image(
        names["minio"], [built_program("rclone"), sh], ['ENTRYPOINT ["/start"]'], {"/start": MINIO}
    )


@pytest.fixture
def components(docker: Docker, tmp_path: Path) -> Iterator[Layout]:
    """The second layout of the page, with an API key."""
    layout = Layout(docker, tmp_path / "machine", "deploy/compose/components", "compose.yaml")
    services = yaml.safe_load((layout.directory / "compose.yaml").read_text())["services"]
    images = {name: service["image"] for name, service in services.items()}
    defaults = {name: image.partition(":-")[2].rstrip("}") for name, image in images.items()}
    try:
        create_component_images(docker, defaults)
    except NotInstalled as e:
        skip_or_fail(e)
    [start] = console_blocks("compose.md", "Every component on its own")
    try:
        layout.run(start)
        yield layout
    finally:
        layout.run("docker compose down -v")


SIGN_IN = """\
import http.client, sys, urllib.parse
for password in sys.argv[1:]:
    form = {"project": "shop", "username": "admin", "password": password}
    # What a client says about itself is not believed.
    headers = {"Content-Type": "application/x-www-form-urlencoded", "X-Forwarded-For": "192.0.2.1"}
    connection = http.client.HTTPConnection("gateway", 9090)
    connection.request("POST", "/auth/login/static", urllib.parse.urlencode(form), headers)
    print("token=" in (connection.getresponse().getheader("Set-Cookie") or ""))
"""


def sign_in(docker: Docker, address: str, *passwords: str) -> list[bool]:
    """Whether each of the passwords is accepted from a container with this address."""
    container = ["run", "--rm", "--network=components_default", f"--ip={address}"]
    printed = docker(*container, "--entrypoint=python3", SERVER, "-c", SIGN_IN, *passwords)
    return [line == "True" for line in printed.split()]


async def use_the_console(url: str) -> None:
    """Signs in and reads a page and an answer of gRPC-Web, all through the gateway."""
    async with httpx2.AsyncClient(base_url=url, follow_redirects=True) as browser:
        form = {"project": "shop", "username": "admin", "password": "choose-a-password"}
        assert (await browser.post("/auth/login/static", data=form)).status_code == 200
        page = await browser.get("/applications")
        assert (page.status_code, ">web<" in page.text) == (200, True)
        who = await browser.post(
            "/grpc.service.webservice.WebService/GetMe",
            headers={"content-type": "application/grpc-web+proto"}, content=bytes(5),
        )  # fmt: skip
        assert b"grpc-status:0" in who.content
        assert b"shop" in who.content


async def start_tasks_of_upstreams_guide(layout: Layout) -> None:
    """Starts server and ops of upstream's guide for ECS with our image, as further replicas."""
    docker = layout.docker
    lines = (layout.directory / ".env").read_text().splitlines()
    settings = dict(line.split("=", 1) for line in lines)
    config = upstream_tasks.CONFIG.format(
        user="root", password=settings["MYSQL_PASSWORD"], port=3306
    )
    for of_the_guide, here in (("database: quickstart", "database: pipecd"), ("logs", "pipecd")):
        config = config.replace(of_the_guide, here)
    variables = {
        "CONTROL_PLANE_CONFIG": base64.b64encode(config.encode()).decode(),
        "ENCRYPTION_KEY": settings["ENCRYPTION_KEY"],
        "AWS_ENDPOINT_URL": "http://minio:9000",
        "AWS_ACCESS_KEY_ID": "pipecd",
        "AWS_SECRET_ACCESS_KEY": settings["MINIO_SECRET_KEY"],
    }
    words = [f"--env={name}={value}" for name, value in variables.items()]
    for task in (upstream_tasks.server, upstream_tasks.ops):
        definition = task(mysql="mysql", redis="redis:6379")
        [entry, *options] = definition["entryPoint"]
        container = docker(
            "run", "-d", *HARDENED, "--network=components_default", *words, f"--entrypoint={entry}",
            SERVER, *options, *definition["command"],
        ).strip()  # fmt: skip
        try:
            await eventually(lambda id=container: is_ready(docker, id), within=100)
        finally:
            docker("rm", "-f", "-v", container)


def is_ready(docker: Docker, container: str) -> bool:
    ask = "wget -q -O /dev/null http://127.0.0.1:9085/readyz && echo ready || true"
    return docker("exec", container, "sh", "-c", ask) == "ready\n"


async def test_every_component_on_its_own_deploys_through_the_gateway(
    components: Layout, tmp_path: Path
) -> None:
    docker, pipectl = components.docker, components.pipectl
    for service in ("server", "ops"):
        about = "{{.HostConfig.ReadonlyRootfs}} {{.Config.User}}"
        assert components.facts(service, about) == "true 1000:0"

    @asynccontextmanager
    async def piped(configuration: str) -> AsyncIterator[None]:
        """A container that connects to the published port, as the page says."""
        file = tmp_path / "piped.yaml"
        file.write_text(configuration)
        for path in (file, tmp_path / "apps", *(tmp_path / "apps").rglob("*")):
            os.chown(path, 1000, 1000)
        volumes = (f"{file}:/etc/piped/piped.yaml:ro", f"{tmp_path}/apps:{tmp_path}/apps:ro")
        docker(
            "run", "-d", "--name=piped", *HARDENED, "--network=host",
            *(f"--volume={volume}" for volume in volumes), PIPED,
            "run", "--config-file=/etc/piped/piped.yaml", "--insecure", "--admin-port=0",
        )  # fmt: skip
        try:
            yield
        finally:
            docker("rm", "-f", "-v", "piped")

    await pipectl.deploy_with(piped, tmp_path)
    url = f"http://127.0.0.1:{components.port}"
    await use_the_console(url)
    async with httpx2.AsyncClient() as operator:
        pages = await operator.get(f"http://127.0.0.1:{components.ops_port}/")
        assert pages.status_code == 200
    # The server behind the gateway tells its clients apart.
    wrong = ["wrong"] * 11
    assert not any(sign_in(docker, "172.31.250.200", *wrong, "choose-a-password"))
    assert sign_in(docker, "172.31.250.201", "choose-a-password") == [True]
    await start_tasks_of_upstreams_guide(components)
    # Everything is stored in the volumes, and the components may start in any order.
    components.run("docker compose down")
    components.run("docker compose up -d --no-deps gateway server ops")
    components.run("docker compose up -d --wait")
    assert (await pipectl("deployment list"))["deployments"][0]["status"] == 4
    await use_the_console(url)
