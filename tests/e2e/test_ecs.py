# SPDX-License-Identifier: Apache-2.0
"""The layouts of Amazon ECS and Cloud Run: parsed, registered, and their commands run as processes.

The provider of AWS cannot be had in a test, so Terraform formats and renders, and AWS is moto.
"""

import base64
import json
import re
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import boto3
import pymysql
import pytest
import yaml

import pipecd.proto.service
from pipecd.observe.telemetry import OTLP_EXPORT_METHOD
from servers import upstream_tasks
from servers.databases import MariaDb, Redis
from servers.google import GoogleCloud
from servers.layout import (
    Container,
    Pipectl,
    create_bucket,
    first_key,
    programs_on_loopback,
    until_ready,
)
from servers.objects import S3
from servers.pages import GUIDE
from servers.polling import eventually
from servers.server import free_port

DEPLOY = Path(__file__).parents[2] / "deploy"
ECS = DEPLOY / "ecs"
PROTO = Path(pipecd.proto.service.__path__[0])
ROLE = "arn:aws:iam::123456789012:role/pipecd"
SECRET = "arn:aws:secretsmanager:eu-west-1:123456789012:secret:"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def terraform_files() -> str:
    return "".join(file.read_text() for file in sorted(ECS.glob("*.tf")))


def test_the_terraform_files_are_formatted_and_refer_to_what_they_declare(terraform: str) -> None:
    ran = subprocess.run(
        [terraform, "fmt", "-check", "-recursive", "-diff", str(ECS)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stdout) == (0, "")
    text = terraform_files()
    variables = set(re.findall(r'^variable "(\w+)"', text, re.MULTILINE))
    assert set(re.findall(r"\bvar\.(\w+)", text)) == variables
    resources = {".".join(found) for found in re.findall(r'^resource "(\w+)" "(\w+)"', text, re.M)}
    referred = set(re.findall(r"(?<![\w.\"])(aws_\w+\.\w+)", text))
    assert referred - {"aws_iam_policy_document.tasks"} <= resources
    assert set(re.findall(r"\blocal\.(\w+)", text)) <= set(re.findall(r"^  (\w+) += ", text, re.M))


def grpc_services() -> set[str]:
    """The services that pipeds and pipectl call by gRPC; those of pages are called by gRPC-Web."""
    found = {OTLP_EXPORT_METHOD.split("/")[1]}
    for file in PROTO.glob("*.proto"):
        text = file.read_text()
        [package] = re.findall(r"^package ([\w.]+);", text, re.MULTILINE)
        found |= {f"{package}.{name}" for name in re.findall(r"^service (\w+)", text, re.MULTILINE)}
    return {name for name in found if not name.endswith(".WebService")}


def test_the_load_balancer_sends_calls_of_pipeds_and_pipectl_to_the_grpc_targets() -> None:
    rules = re.findall(r"path_pattern {\s+values = \[([^]]*)\]", terraform_files())
    patterns = [re.findall(r'"([^"]+)"', rule) for rule in rules]
    # The limit of a rule.
    assert max(map(len, patterns)) <= 5
    unmatched = {
        name
        for name in grpc_services()
        if not any(fnmatchcase(f"/{name}/Method", one) for rule in patterns for one in rule)
    }
    assert unmatched == set()


@dataclass
class Rendered:
    """What Terraform makes of the templates."""

    config: str
    server: list[dict[str, Any]]
    ops: list[dict[str, Any]]


def render(terraform: str, directory: Path, *, database: str, cache: str) -> Rendered:
    """Renders the templates with the values that ecs.tf gives them."""
    names = set(re.findall(r"^    (\w+) += ", terraform_files().partition("task = {")[2], re.M))
    task = {name: f"{SECRET}{name}" if name.endswith("_secret") else name for name in names}
    task |= {"cache_address": cache, "control_plane_config": "CONFIG", "first_project": "shop"}
    config = {"address": "https://p", "database": database, "bucket": "logs", "region": "eu-west-1"}
    outputs = {"config": f'templatefile("{ECS}/control-plane.yaml.tftpl", {json.dumps(config)})'}
    for name in ("server", "ops"):
        template = f"{ECS}/task-definitions/{name}.json.tftpl"
        outputs[name] = f'templatefile("{template}", {json.dumps(task)})'
    directory.mkdir()
    (directory / "main.tf").write_text(
        "".join(f'output "{name}" {{\n  value = {value}\n}}\n' for name, value in outputs.items())
    )
    environment = {"TF_CLI_CONFIG_FILE": "/dev/null", "CHECKPOINT_DISABLE": "1", "PATH": ""}
    written = b""
    for command in (["init"], ["apply", "-auto-approve"], ["output", "-json"]):
        written = subprocess.run(
            [terraform, *command], cwd=directory, env=environment, check=True, capture_output=True
        ).stdout
    values = {name: output["value"] for name, output in json.loads(written).items()}
    return Rendered(values["config"], json.loads(values["server"]), json.loads(values["ops"]))


@pytest.fixture
def database(mariadb: MariaDb) -> Iterator[str]:
    """The address of a database server with a user of the control plane."""
    with (
        pymysql.connect(host="127.0.0.1", port=mariadb.port, user="root") as connection,
        connection.cursor() as cursor,
    ):
        for name in ("pipecd", "quickstart"):
            cursor.execute(f"DROP DATABASE IF EXISTS {name}")
            cursor.execute(f"CREATE DATABASE {name}")
        cursor.execute("CREATE OR REPLACE USER pipecd@'%' IDENTIFIED BY 'a-password'")
        cursor.execute("GRANT ALL ON *.* TO pipecd@'%'")
    yield f"127.0.0.1:{mariadb.port}"


def register(definition: dict[str, Any]) -> None:
    definition = {"executionRoleArn": ROLE, "taskRoleArn": ROLE, **definition}
    registered = boto3.client("ecs").register_task_definition(**definition)["taskDefinition"]
    assert registered["status"] == "ACTIVE"


def task(family: str, containers: list[dict[str, Any]]) -> dict[str, Any]:
    """The task definition that Terraform registers."""
    return {
        "family": family,
        "requiresCompatibilities": ["FARGATE"],
        "networkMode": "awsvpc",
        "cpu": "512",
        "memory": "1024",
        "volumes": [{"name": "home"}, {"name": "tmp"}],
        "containerDefinitions": [{"memory": 1024, **container} for container in containers],
    }


def variables_of_files(definition: dict[str, Any]) -> dict[str, str]:
    """The variables of `environmentFiles`, as the agent of ECS reads them from S3."""
    variables: dict[str, str] = {}
    for file in definition.get("environmentFiles", []):
        bucket, _, key = file["value"].removeprefix("arn:aws:s3:::").partition("/")
        text = boto3.client("s3").get_object(Bucket=bucket, Key=key)["Body"].read().decode()
        variables |= dict(line.split("=", 1) for line in text.splitlines())
    return variables


@asynccontextmanager
async def running(
    container: Container, definition: dict[str, Any], environment: dict[str, str]
) -> AsyncIterator[Path]:
    """Runs the container of a task definition; the environment has the values of its secrets."""
    entry = definition.get("entryPoint", [])
    variables = variables_of_files(definition)
    variables |= {each["name"]: each["value"] for each in definition.get("environment", [])}
    wanted = {each["name"] for each in definition.get("secrets", [])}
    assert wanted <= environment.keys()
    async with container.started(
        [*entry, *definition["command"]], {**variables, **environment}
    ) as log:
        yield log


async def test_the_tasks_of_the_layout_run_and_a_piped_with_its_configuration_in_a_secret_deploys(
    terraform: str, aws: S3, database: str, redis: Redis, tmp_path: Path
) -> None:
    create_bucket("logs")
    cache = f"127.0.0.1:{redis.port}"
    rendered = render(terraform, tmp_path / "terraform", database=database, cache=cache)
    for family, containers in (("server", rendered.server), ("ops", rendered.ops)):
        register(task(family, containers))
    port = free_port()
    programs = programs_on_loopback(tmp_path / "bin", port)
    container = Container(tmp_path / "server")
    secrets = {
        **aws.environment,
        "PATH": programs,
        "ENCRYPTION_KEY": "k" * 64,
        "STATE_KEY": "a-state-key",
        "PIPECD_FIRST_ADMIN_PASSWORD": "hello-shop",
        "DATABASE_USERNAME": "pipecd",
        "DATABASE_PASSWORD": "a-password",
    }

    def with_config(container: Container) -> dict[str, str]:
        text = rendered.config
        return {**secrets, "CONTROL_PLANE_CONFIG": base64.b64encode(text.encode()).decode()}

    ops = Container(tmp_path / "ops")
    async with (
        running(container, rendered.server[0], with_config(container)) as log,
        running(ops, rendered.ops[0], with_config(ops)),
    ):
        await until_ready(log)
        written = container.home / "control-plane.yaml"
        assert "stateKey: a-state-key" in written.read_text()
        pipectl = Pipectl(port, await first_key(written, "shop"))

        @asynccontextmanager
        async def piped(configuration: str) -> AsyncIterator[Path]:
            secret = base64.b64encode(configuration.encode()).decode()
            boto3.client("secretsmanager").create_secret(Name="piped-config", SecretString=secret)
            text = (ECS / "piped" / "task-definition.json").read_text()
            for name in ("EXECUTION_ROLE_ARN", "TASK_ROLE_ARN"):
                text = text.replace(name, ROLE)
            definition = json.loads(text)
            # The page creates this group, which ECS does not.
            [log] = [each["logConfiguration"] for each in definition["containerDefinitions"]]
            assert log["options"]["awslogs-group"] in (GUIDE / "piped-installation.md").read_text()
            register(definition)
            [container] = definition["containerDefinitions"]
            container = {**container, "command": ["piped", *container["command"]]}
            environment = {**aws.environment, "PATH": programs}
            async with running(Container(tmp_path / "piped"), container, environment) as log:
                yield log

        await pipectl.deploy_with(piped, tmp_path)


async def test_the_tasks_of_upstreams_guide_run_unchanged(
    aws: S3, database: str, redis: Redis, tmp_path: Path
) -> None:
    """Server, ops and piped as upstream's guide defines them; only addresses are filled in.

    The configuration of the piped comes from a file in S3.
    """
    create_bucket("logs")
    host, _, database_port = database.partition(":")
    cache = f"127.0.0.1:{redis.port}"
    config = upstream_tasks.CONFIG.format(user="pipecd", password="a-password", port=database_port)
    port = free_port()
    secrets = {
        **aws.environment,
        "PATH": programs_on_loopback(tmp_path / "bin", port),
        "CONTROL_PLANE_CONFIG": base64.b64encode(config.encode()).decode(),
        "ENCRYPTION_KEY": "k" * 64,
    }

    container = Container(tmp_path / "server")
    async with (
        running(container, upstream_tasks.server(mysql=host, redis=cache), secrets) as log,
        running(Container(tmp_path / "ops"), upstream_tasks.ops(mysql=host, redis=cache), secrets),
    ):
        await until_ready(log)
        written = container.home / upstream_tasks.CONFIG_FILE
        pipectl = Pipectl(port, await first_key(written, "quickstart"))

        @asynccontextmanager
        async def launcher(configuration: str) -> AsyncIterator[Path]:
            command = '/bin/sh -c "launcher launcher --config-data=$(echo $CONFIG_DATA)"'
            data = base64.b64encode(configuration.encode()).decode()
            definition = {
                "name": "piped",
                "image": "launcher",
                "entryPoint": ["sh", "-c"],
                "command": [command],
                "environmentFiles": [{"type": "s3", "value": "arn:aws:s3:::logs/piped.env"}],
            }
            boto3.client("s3").put_object(
                Bucket="logs", Key="piped.env", Body=f"CONFIG_DATA={data}\n"
            )
            register(task("piped", [definition]))
            environment = {"PATH": secrets["PATH"]}
            async with running(Container(tmp_path / "piped"), definition, environment) as log:
                yield log

        await pipectl.deploy_with(launcher, tmp_path)


def test_the_service_of_a_piped_on_cloud_run_is_one_process_at_all_times() -> None:
    service = yaml.safe_load((DEPLOY / "cloud-run" / "piped.yaml").read_text())
    annotations = service["spec"]["template"]["metadata"]["annotations"]
    assert annotations["autoscaling.knative.dev/minScale"] == "1"
    assert annotations["autoscaling.knative.dev/maxScale"] == "1"
    assert annotations["run.googleapis.com/cpu-throttling"] == "false"
    assert service["spec"]["template"]["spec"]["containerConcurrency"] == 1


async def test_the_command_of_the_service_on_cloud_run_deploys(
    google: GoogleCloud, tmp_path: Path
) -> None:
    port, probed = free_port(), free_port()
    path = {"PATH": programs_on_loopback(tmp_path / "bin", port)}
    container = Container(tmp_path / "server")
    compose = DEPLOY / "compose" / "control-plane.yaml"
    config = container.write("/etc/pipecd/control-plane.yaml", compose.read_text())
    container.write("/etc/pipecd/key", "k" * 64)
    server = "pipecd server --config-file /etc/pipecd/control-plane.yaml --encryption-key-file"
    first = {"PIPECD_FIRST_PROJECT": "shop", "PIPECD_FIRST_ADMIN_PASSWORD": "hello-shop"}
    text = (DEPLOY / "cloud-run" / "piped.yaml").read_text().replace("PROJECT", "shop")
    [service] = yaml.safe_load(text)["spec"]["template"]["spec"]["containers"]
    flag = "--launcher-admin-port="
    # Cloud Run starts an instance once this port accepts connections.
    assert f"{flag}{service['ports'][0]['containerPort']}" in service["args"]
    args = [f"{flag}{probed}" if word.startswith(flag) else word for word in service["args"]]

    async with container.started([*server.split(), "/etc/pipecd/key"], {**path, **first}) as log:
        await until_ready(log)
        pipectl = Pipectl(port, await first_key(config, "shop"))

        @asynccontextmanager
        async def piped(configuration: str) -> AsyncIterator[Path]:
            secret = "projects/shop/secrets/piped-config/versions/latest"
            google.secrets[secret] = configuration.encode()
            place = Container(tmp_path / "piped")
            environment = {**path, **google.environment}
            async with place.started(["launcher", *args], environment) as log:
                await eventually(lambda: accepts_connections(probed), within=60)
                yield log

        await pipectl.deploy_with(piped, tmp_path)


def accepts_connections(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False
