# SPDX-License-Identifier: Apache-2.0
"""`pipectl init`: asks a few questions and writes the configuration file of an application."""

import json
import os
import sys
from pathlib import Path

import click

from pipecd.commandline import flags
from pipecd.config.application import DEFAULT_CONFIG_FILE
from pipecd.config.catalog import load_catalog
from pipecd.config.schema import schema_of
from pipecd.model.application import name_problem
from pipecd.model.errors import UserMistake

_SCHEMA_FILE = Path(".pipecd") / "application.schema.json"
_HEAD = """\
# yaml-language-server: $schema={schema}
apiVersion: pipecd.dev/v1beta1
kind: Application
spec:
  name: {name}
  labels:
    env: dev
"""
_PIPELINES = {
    "kubernetes": """\
  plugins:
    kubernetes:
      input:
        # Manifests in this directory; for Helm write helmChart, for Kustomize nothing more.
        manifests: []
        namespace: default
  # Without a pipeline all manifests are applied at once.
  pipeline:
    stages:
      - name: K8S_CANARY_ROLLOUT
        with:
          replicas: 10%
      - name: WAIT
        with:
          duration: 1m
      - name: K8S_PRIMARY_ROLLOUT
      - name: K8S_CANARY_CLEAN
""",
    "terraform": """\
  plugins:
    terraform:
      workspace: default
  pipeline:
    stages:
      - name: TERRAFORM_PLAN
      - name: WAIT_APPROVAL
        with:
          anyone: true
      - name: TERRAFORM_APPLY
""",
    "ecs": """\
  plugins:
    ecs:
      input:
        # Both files are in this directory; write them as JSON or YAML, as the AWS API reads them.
        taskDefinitionFile: taskdef.json
        serviceDefinitionFile: servicedef.json
        # For a canary behind a load balancer, name the target groups of both variants here.
  # Without a pipeline the service is updated at once.
  pipeline:
    stages:
      - name: ECS_SYNC
      - name: WAIT
        with:
          duration: 1m
""",
    "lambda": """\
  plugins:
    lambda:
      input:
        functionManifestFile: function.yaml
  pipeline:
    stages:
      - name: LAMBDA_CANARY_ROLLOUT
      - name: LAMBDA_PROMOTE
        with:
          percent: 10
      - name: WAIT
        with:
          duration: 1m
      - name: LAMBDA_PROMOTE
        with:
          percent: 100
""",
    "cloudrun": """\
  plugins:
    cloudrun:
      input:
        serviceManifestFile: service.yaml
  pipeline:
    stages:
      - name: CLOUDRUN_PROMOTE
        with:
          percent: 10
      - name: WAIT
        with:
          duration: 1m
      - name: CLOUDRUN_PROMOTE
        with:
          percent: 100
""",
    "process": """\
  plugins:
    process:
      input:
        # A program in this directory or in PATH; it listens on the port in $PORT.
        command: ./server
        args: []
        # The port of the router, which distributes requests to the replicas.
        port: 8000
        replicas: 2
        healthCheck:
          path: /
          timeout: 30s
  pipeline:
    stages:
      - name: PROCESS_CANARY_ROLLOUT
        with:
          replicas: 1
      - name: PROCESS_TRAFFIC_ROUTING
        with:
          canary: 10
      - name: WAIT
        with:
          duration: 1m
      - name: PROCESS_PRIMARY_ROLLOUT
      - name: PROCESS_TRAFFIC_ROUTING
        with:
          primary: 100
      - name: PROCESS_CANARY_CLEAN
""",
    "script": """\
  pipeline:
    stages:
      - name: SCRIPT_RUN
        with:
          run: |
            echo "Deploying commit $SR_TRIGGERED_COMMIT_HASH of $SR_APPLICATION_NAME"
          onRollback: |
            echo "Rolling back $SR_APPLICATION_NAME"
""",
}


@click.command("init")
@flags.every_command
@flags.text("name", "The name of the application; asked for if it is not set.")
@flags.text(
    "platform",
    f"One of {', '.join(_PIPELINES)}; asked for if it is not set.",
    complete=flags.among(_PIPELINES),
)
@flags.text("dir", "The directory of the application.", default=".")
def init(name: str, platform: str, dir: str, **_: object) -> None:
    """Write the configuration file of a new application, to edit and commit."""
    directory = Path(dir)
    file = directory / DEFAULT_CONFIG_FILE
    if file.exists():
        raise UserMistake(f"{file} exists already", hint="edit it, or choose another --dir")
    name = name or _ask("Name of the application", directory.absolute().name, "--name")
    if problem := name_problem(name):
        raise UserMistake(problem)
    platform = platform or _ask(f"Platform ({', '.join(_PIPELINES)})", "script", "--platform")
    if platform not in _PIPELINES:
        raise UserMistake(
            f"there is no file to begin with for the platform {platform}",
            hint=f"use one of {', '.join(_PIPELINES)}",
        )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        schema = _write_schema(directory)
        head = _HEAD.format(schema=schema, name=json.dumps(name))
        file.write_text(head + _PIPELINES[platform])
    except OSError as e:
        raise UserMistake(f"cannot write {file}: {e.strerror}") from e
    click.echo(f"Wrote {file}. Edit it, check it with `pipectl lint {file}`, and commit it.")


def _ask(question: str, default: str, flag: str) -> str:
    if not sys.stdin.isatty():
        raise UserMistake(f"{flag} is not set", hint="nobody can be asked without a terminal")
    return click.prompt(question, default=default, err=True)


def _write_schema(directory: Path) -> str:
    """Writes the schema for editors into the repository; returns its path from the directory."""
    absolute = directory.resolve()
    root = next((d for d in (absolute, *absolute.parents) if (d / ".git").exists()), absolute)
    schema = root / _SCHEMA_FILE
    schema.parent.mkdir(exist_ok=True)
    schema.write_text(json.dumps(schema_of("Application", load_catalog()), indent=2) + "\n")
    return Path(os.path.relpath(schema, absolute)).as_posix()
