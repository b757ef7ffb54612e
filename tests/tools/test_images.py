# SPDX-License-Identifier: Apache-2.0
"""The images of a release: their bytes, their content, and a container engine that runs them.

Packages of Debian are downloaded, so these tests are long; the engine is one of their own.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from servers.layout import APPLICATION
from servers.server import free_port

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "deploy" / "compose"
TAG = "v0.1.0"

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1800)]


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


def compose_command() -> list[str] | None:
    """The words that Compose is called with: a program of its own, or a plugin of docker."""
    if shutil.which("docker-compose"):
        return ["docker-compose"]
    plugin = ["docker", "compose"]
    if shutil.which("docker") is None:
        return None
    has_plugin = subprocess.run([*plugin, "version"], capture_output=True, check=False)
    return plugin if has_plugin.returncode == 0 else None


@pytest.fixture(scope="module")
def engine(
    releases: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """The variables of a Docker daemon of our own that has the images."""
    # The daemon is in a directory that is on the PATH of root only.
    path = f"{os.environ['PATH']}:/usr/local/sbin:/usr/sbin:/sbin"
    docker, dockerd = (shutil.which(name, path=path) for name in ("docker", "dockerd"))
    if os.getuid() != 0 or docker is None or dockerd is None or compose_command() is None:
        pytest.skip("needs root, docker, dockerd, and docker-compose or the plugin compose")
    # Paths of sockets are short.
    directory = Path(subprocess.check_output(["mktemp", "-d"], text=True).strip())
    variables = {**os.environ, "DOCKER_HOST": f"unix://{directory}/sock"}
    places = [f"--data-root={directory}/data", f"--exec-root={directory}/exec"]
    command = [dockerd, *places, f"--pidfile={directory}/pid"]
    with (directory / "log").open("wb") as log:
        daemon = subprocess.Popen(
            [*command, "-H", variables["DOCKER_HOST"]], stdout=log, stderr=log
        )
    try:
        until = time.monotonic() + 60
        while subprocess.run(
            [docker, "ps"], env=variables, capture_output=True, check=False
        ).returncode:
            if daemon.poll() is not None or time.monotonic() > until:
                pytest.skip(
                    f"the Docker daemon does not start: {(directory / 'log').read_text()[-300:]}"
                )
            time.sleep(0.5)
        for name in ("pipecd-server", "piped"):
            subprocess.run(
                [docker, "load", "-i", str(archive(releases[0], name))], env=variables, check=True
            )
        yield variables
    finally:
        daemon.terminate()
        daemon.wait(60)
        shutil.rmtree(directory, ignore_errors=True)


def test_a_container_runs_with_a_read_only_root(engine: dict[str, str]) -> None:
    script = "id -u; echo aGVsbG8K | base64 -d | sed s/hello/bye/; pipecd version; touch /usr/x"
    ran = subprocess.run(
        ["docker", "run", "--rm", "--read-only", "--cap-drop=ALL", "--entrypoint", "sh",
         f"localhost/pipecd-server:{TAG}", "-c", script],
        env=engine, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.stdout.splitlines()[:2] == ["1000", "bye"]
    assert "Version: v0.1.0" in ran.stdout
    assert "Read-only file system" in ran.stderr


class Project:
    """A Compose project with the files of the guide, and a repository in a container of its own."""

    def __init__(self, directory: Path, engine: dict[str, str]) -> None:
        self.directory, self.engine = directory, engine
        shutil.copytree(COMPOSE, directory)
        files = ["-f", "compose.yaml", "-f", "git.yaml", "--profile", "piped"]
        self.words = [*(compose_command() or []), *files]
        repository = directory / "apps"
        (repository / "web").mkdir(parents=True)
        (repository / "web" / "app.pipecd.yaml").write_text(APPLICATION)
        git = ["git", "-C", str(repository), "-c", "user.name=a", "-c", "user.email=a@example.com"]
        for words in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-qm", "one"]):
            subprocess.run([*git, *words], check=True)
        subprocess.run(["chmod", "-R", "a+rX", str(directory)], check=True)
        daemon = ["git", "-c", "safe.directory=*", "daemon", "--export-all", "--base-path=/srv"]
        service = {"image": f"localhost/piped:{TAG}", "entrypoint": daemon}
        volumes = ["./apps:/srv/apps:ro"]
        services = {"services": {"git": {**service, "volumes": volumes}}}
        (directory / "git.yaml").write_text(yaml.safe_dump(services))

    def __call__(self, *words: str) -> str:
        ran = subprocess.run(
            [*self.words, *words], cwd=self.directory, env=self.engine, capture_output=True,
            text=True, check=False,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    def pipectl(self, line: str, key: str) -> str:
        connection = f"--address localhost:9090 --insecure --api-key {key}"
        return self("exec", "-T", "server", "pipectl", *line.split(), *connection.split())


def until(condition: Any, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(1)


def test_the_compose_file_of_the_guide_deploys(engine: dict[str, str], tmp_path: Path) -> None:
    project = Project(tmp_path / "compose", engine)
    settings = project.directory / ".env"
    settings.write_text(
        "PIPECD_FIRST_PROJECT=shop\nPIPECD_FIRST_ADMIN_PASSWORD=hello-shop\n"
        f"PIPECD_PORT={free_port()}\n"
    )
    try:
        project("up", "-d", "server", "git")
        until(lambda: "control plane ready" in project("logs", "server"))
        key = project(
            "exec", "-T", "server", "pipecd", "api-key", "add", "--project", "shop", "--name",
            "first", "--role", "READ_WRITE", "--config-file", "/etc/pipecd/control-plane.yaml",
        ).strip()  # fmt: skip
        registered = project.pipectl("piped register --name dev --config-out /tmp/piped.yaml", key)
        id = json.loads(registered)["id"]
        text = project("exec", "-T", "server", "cat", "/tmp/piped.yaml")
        text = text.replace("apiAddress: localhost:9090", "apiAddress: server:9090")
        apps = "[{repoID: apps, remote: git://git/apps, branch: main}]"
        text = text.replace("repositories: []", f"repositories: {apps}")
        secret = project.directory / "piped.yaml"
        secret.write_text(text)
        secret.chmod(0o600)
        os.chown(secret, 1000, 1000)
        project("up", "-d")
        until(lambda: "repositories" in project.pipectl(f"piped get --piped-id {id}", key))
        add = f"application add --app-name web --piped-id {id} --repo-id apps --app-dir web"
        application = json.loads(project.pipectl(f"{add} --output json", key))["application_id"]
        listed = f"deployment list --app-id {application}"
        until(lambda: '"status": 4' in json.dumps(json.loads(project.pipectl(listed, key))))
    finally:
        project("down", "-v")
