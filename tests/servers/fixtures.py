# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the servers that tests run against, each started once and only on demand."""

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

import pytest

from servers.amazon import Amazon
from servers.amazon_ecs import EcsRules, ElbRules
from servers.amazon_lambda import LambdaRules
from servers.certificates import self_signed
from servers.control_plane import (
    StartControlPlane,
    start_control_plane,
)
from servers.databases import Dolt, MariaDb, Postgres, Redis
from servers.git_http import GitHttp
from servers.git_ssh import GitSsh
from servers.google import GoogleCloud
from servers.kubernetes import Kubernetes
from servers.objects import S3, Gcs, opened_by_kms
from servers.programs import NotInstalled, built_program, skip_or_fail
from servers.prometheus import GuardedPrometheus, Prometheus
from servers.receivers import Mailbox, Receivers
from servers.registry import OciRegistry
from servers.server import Server
from servers.terraform_states import TerraformStates

S = TypeVar("S", bound=Server | Kubernetes)

SERVERS = ("mariadb", "postgres", "dolt", "redis", "s3", "amazon", "kubernetes")
# A stage waits for every apply of this machine that may have locked its state.
APPLIES = ("terraform", "tofu")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keeps the tests of a server in one worker, so that it is started once.

    So are those that apply something with Terraform or OpenTofu, one after the other.
    """
    for item in items:
        used = set(getattr(item, "fixturenames", ()))
        if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            used |= {str(value) for value in item.callspec.params.values()}
        for server in SERVERS:
            if server in used:
                item.add_marker(pytest.mark.xdist_group(server))
                break
        else:
            if not used.isdisjoint(APPLIES):
                item.add_marker(pytest.mark.xdist_group("applies"))


def running(kind: Callable[[], S]) -> Iterator[S]:
    """A server as a fixture; without its program the test is skipped, or fails in CI."""
    try:
        server = kind()
    except NotInstalled as e:
        skip_or_fail(e)
    try:
        yield server
    finally:
        server.close()


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDb]:
    yield from running(MariaDb)


@pytest.fixture(scope="session")
def dolt() -> Iterator[Dolt]:
    yield from running(Dolt)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    yield from running(Postgres)


@pytest.fixture(scope="session")
def redis() -> Iterator[Redis]:
    yield from running(Redis)


@pytest.fixture(scope="session")
def s3() -> Iterator[S3]:
    server = S3()
    yield server
    server.close()


@pytest.fixture(scope="session")
def gcs() -> Iterator[Gcs]:
    yield from running(Gcs)


@pytest.fixture
def google(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GoogleCloud]:
    """A fake of Google Cloud that every client in this process uses, with credentials for it."""
    cloud = GoogleCloud(tmp_path)
    for name, value in cloud.environment.items():
        monkeypatch.setenv(name, value)
    yield cloud
    cloud.close()


@pytest.fixture
def aws(s3: S3, monkeypatch: pytest.MonkeyPatch) -> S3:
    """A fake of AWS that every client in this process uses, with credentials for it."""
    monkeypatch.setattr("moto.kms.models.KmsBackend.decrypt", opened_by_kms)
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    return s3


@pytest.fixture(scope="session")
def amazon_server() -> Iterator[Amazon]:
    server = Amazon({"ecs": EcsRules(), "elbv2": ElbRules(), "lambda": LambdaRules()})
    server.start()
    yield server
    server.close()


@pytest.fixture
def amazon(amazon_server: Amazon, monkeypatch: pytest.MonkeyPatch) -> Amazon:
    """AWS without resources; its address is the `endpoint` of a deploy target."""
    amazon_server.reset()
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in amazon_server.environment.items():
        monkeypatch.setenv(name, value)
    return amazon_server


@pytest.fixture(scope="session")
def git_ssh() -> Iterator[GitSsh]:
    yield from running(GitSsh)


@pytest.fixture
def git_http(tmp_path: Path) -> Iterator[GitHttp]:
    """A server for the repositories below `tmp_path`."""
    server = GitHttp(tmp_path)
    yield server
    server.close()


@pytest.fixture
def git_https(tmp_path: Path, certificate: tuple[str, str]) -> Iterator[GitHttp]:
    """The same with the certificate of `certificate`."""
    server = GitHttp(tmp_path, certificate)
    yield server
    server.close()


@pytest.fixture(scope="session")
def prometheus() -> Iterator[Prometheus]:
    yield from running(Prometheus)


@pytest.fixture(scope="session")
def guarded_prometheus() -> Iterator[GuardedPrometheus]:
    yield from running(GuardedPrometheus)


@pytest.fixture(scope="session")
def kubernetes() -> Iterator[Kubernetes]:
    """A cluster for all tests of a worker; take `namespace` for a place of one's own."""
    yield from running(Kubernetes)


@pytest.fixture
def namespace(kubernetes: Kubernetes) -> Iterator[str]:
    """The name of a new namespace, which is deleted after the test."""
    name = f"test-{uuid4().hex[:8]}"
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    kubernetes.ask("POST", "/api/v1/namespaces", body)
    yield name
    kubernetes.ask("DELETE", f"/api/v1/namespaces/{name}")


def program(name: str) -> str:
    try:
        return built_program(name)
    except NotInstalled as e:
        skip_or_fail(e)


@pytest.fixture(scope="session")
def kubectl() -> str:
    return program("kubectl")


@pytest.fixture(scope="session")
def helm() -> str:
    return program("helm")


@pytest.fixture(scope="session")
def kustomize() -> str:
    return program("kustomize")


@pytest.fixture(scope="session")
def terraform() -> str:
    return program("terraform")


@pytest.fixture(scope="session")
def tofu() -> str:
    return program("tofu")


@pytest.fixture
def terraform_states() -> Iterator[TerraformStates]:
    """A backend that stores and locks the state of Terraform over HTTP."""
    with TerraformStates() as states:
        yield states


@pytest.fixture
def rendering_tools(helm: str, kustomize: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts the tools of the test bed before those of the machine."""
    for tool in (kustomize, helm):
        monkeypatch.setenv("PATH", str(Path(tool).parent), prepend=":")


@pytest.fixture
def registry() -> Iterator[OciRegistry]:
    """A registry without TLS."""
    server = OciRegistry()
    yield server
    server.close()


@pytest.fixture
def tls_registry(certificate: tuple[str, str]) -> Iterator[OciRegistry]:
    """The same with the certificate of `certificate`."""
    server = OciRegistry(certificate)
    yield server
    server.close()


@pytest.fixture
def receivers() -> Iterator[Receivers]:
    """Receivers of notifications over HTTP."""
    server = Receivers()
    yield server
    server.close()


@pytest.fixture
def mailbox() -> Iterator[Mailbox]:
    """A mail server without TLS."""
    server = Mailbox()
    yield server
    server.close()


@pytest.fixture
def start_plane(tmp_path: Path) -> StartControlPlane:
    """Starts a control plane on SQLite and local files: `async with start_plane() as plane`."""
    return partial(start_control_plane, tmp_path)


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[str, str]:
    """A certificate for loopback and its key, as files."""
    return self_signed(tmp_path)
