# SPDX-License-Identifier: Apache-2.0
"""The applications that faults are tried on: scripts, processes, Terraform and Kubernetes.

Each target writes itself what happened to it, so that nothing depends on what our programs report:
scripts, programs and provisioners of Terraform append a line to the truth file, the API server of the
cluster writes its audit log.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

CONFIG = "app.pipecd.yaml"
CONFIGS = (CONFIG, "blue.pipecd.yaml", "green.pipecd.yaml")
"""The configuration files that an application can be registered with: they differ in the description alone."""
EVENT_FILE = "values.yaml"
BROKEN = "}]\n"
"""What a configuration begins with that does not parse."""
TOOL_VERSION = "given"
"""The version of Terraform for a first-generation piped, which has it as a file of that name."""
APPROVERS = ("root", "ann", "ben")
# What configurations set in the environment of a target, and in the labels of an application.
SETTING, SETTING_LABEL = "SETTING", "setting"
# Runs without the stepped clock: the truth has one clock for all programs.
NOW = "$(LD_PRELOAD= date +%s.%N)"


class Platform(StrEnum):
    """What an application is deployed by."""

    SCRIPT = "script"
    PROCESS = "process"
    TERRAFORM = "terraform"
    KUBERNETES = "kubernetes"


class Shape(StrEnum):
    """What the pipeline of an application of scripts has besides one script."""

    PLAIN = "plain"
    ROLLBACK = "two scripts with their rollbacks"
    APPROVAL = "an approval of two people between two scripts"
    ANALYSIS = "an analysis that can be skipped"
    CHAIN = "a chain to the next application"
    FOLLOWER = "only triggered by a chain and by hand"
    EVENTS = "values that events write"


class Upstream(StrEnum):
    """A generation of upstream's piped, which has application files of its own."""

    FIRST = "piped"
    SECOND = "pipedv1"


@dataclass(frozen=True)
class FaultyApplication:
    """One application and the number of its piped."""

    name: str
    platform: Platform
    piped: int
    shape: Shape = Shape.PLAIN
    follower: str = ""
    """The application that its chain deploys next."""
    upstream: Upstream | None = None
    """The generation of upstream's piped that deploys it; None if ours does."""

    @property
    def event(self) -> str:
        """The name of the event that it watches."""
        return f"image-{self.name}"


@dataclass(frozen=True)
class Revision:
    """One content of an application."""

    nonce: int
    seconds: float = 0.1
    lines: int = 5
    fails: bool = False
    is_broken: bool = False
    """The configuration does not parse, so that no deployment of it can exist."""

    @property
    def setting(self) -> str:
        return setting_of(self.nonce)


def setting_of(nonce: int | str) -> str:
    """The value that the configuration of a revision sets: every push edits it."""
    return f"v{nonce}"


def description_of(nonce: int | str, config: str) -> str:
    """The description that a configuration file of a revision has."""
    return f"{setting_of(nonce)} of {config}"


SHAPES = (
    (Shape.PLAIN, ""), (Shape.ROLLBACK, ""), (Shape.APPROVAL, ""), (Shape.ANALYSIS, ""),
    (Shape.CHAIN, "s05"), (Shape.FOLLOWER, ""), (Shape.EVENTS, ""), (Shape.PLAIN, ""),
    (Shape.ROLLBACK, ""), (Shape.APPROVAL, ""), (Shape.EVENTS, ""), (Shape.PLAIN, ""),
)  # fmt: skip


def all_applications(platforms: Sequence[Platform], pipeds: int) -> list[FaultyApplication]:
    """Twelve applications of scripts, and four of each other platform, spread over the pipeds."""
    applications: list[FaultyApplication] = []
    if Platform.SCRIPT in platforms:
        for number, (shape, follower) in enumerate(SHAPES):
            # A chain may cross pipeds.
            application = FaultyApplication(
                f"s{number:02}", Platform.SCRIPT, number % pipeds, shape, follower
            )
            applications.append(application)
    for platform in (Platform.PROCESS, Platform.TERRAFORM, Platform.KUBERNETES):
        if platform in platforms:
            applications += [
                FaultyApplication(f"{platform[0]}{number:02}", platform, number % pipeds)
                for number in range(4)
            ]
    return applications


@dataclass(frozen=True)
class Targets:
    """Where applications are deployed to, and where that is recorded."""

    truth: Path
    directory: Path
    namespace: str = "default"

    def files(self, application: FaultyApplication, revision: Revision) -> dict[str, str]:
        """The files of an application at a revision."""
        match application.platform:
            case Platform.SCRIPT:
                spec, more = self._script(application, revision), dict[str, str]()
            case Platform.PROCESS:
                spec, more = self._process(application, revision)
            case Platform.TERRAFORM:
                spec, more = self._terraform(application, revision)
            case Platform.KUBERNETES:
                spec, more = self._kubernetes(application, revision)
        kind = "Application"
        match application.upstream:
            case Upstream.FIRST:
                kind, spec = "TerraformApp", {"input": {"terraformVersion": TOOL_VERSION}}
            case Upstream.SECOND:
                # Its plugin of scripts has no quick sync.
                spec = {**spec, "planner": {"alwaysUsePipeline": True}}
            case None:
                pass
        # Upstream's pipeds have no use for the other ones.
        for config in CONFIGS if application.upstream is None else (CONFIG,):
            about = {
                "name": application.name,
                "description": description_of(revision.nonce, config),
                "labels": {SETTING_LABEL: revision.setting},
            }
            document = {
                "apiVersion": "pipecd.dev/v1beta1",
                "kind": kind,
                "spec": {**about, **spec},
            }
            text = f"{json.dumps(document, indent=1)}\n# {revision.nonce}\n"
            # At the end it would be another document, which is not read.
            more[config] = f"{BROKEN}{text}" if revision.is_broken else text
        return {f"{application.name}/{name}": content for name, content in more.items()}

    def script(self, label: str, *, seconds: float, lines: int, code: int) -> str:
        """A script that records its begin, its end and its setting, and prints numbered lines with their count.

        `label` is the index of its stage. It locks a file of its application, which the kernel unlocks when it ends or dies.
        """

        def record(what: str) -> str:
            return (
                f'echo "{what} $SR_APPLICATION_NAME $SR_DEPLOYMENT_ID $SR_TRIGGERED_COMMIT_HASH '
                f'$$ {NOW} {label} ${SETTING}" >> {self.truth}'
            )

        return (
            f"exec 9>{self.truth}.$SR_APPLICATION_NAME; flock -n 9 || {record('overlap')}; "
            f"{record('begin')}; i=0; while [ $i -lt {lines} ]; do i=$((i+1)); "
            f'echo "L $$ $i {lines}"; done; sleep {seconds}; {record("end")}; exit {code}'
        )

    def _script(self, application: FaultyApplication, revision: Revision) -> dict[str, Any]:
        def stage(index: int, *, code: int = 0) -> dict[str, Any]:
            run = self.script(str(index), seconds=revision.seconds, lines=revision.lines, code=code)
            undo = self.script(f"undo-{index}", seconds=0.5, lines=2, code=0)
            options: dict[str, Any] = {"run": run, "env": {SETTING: revision.setting}}
            if application.shape is Shape.ROLLBACK:
                options["onRollback"] = undo
            return {"name": "SCRIPT_RUN", "with": options}

        code = int(revision.fails)
        stages = [stage(0, code=code)]
        spec: dict[str, Any] = {}
        match application.shape:
            case Shape.ROLLBACK:
                stages = [stage(0), stage(1, code=code)]
            case Shape.APPROVAL:
                options = {"minApproverNum": 2, "timeout": "10m", "approvers": list(APPROVERS)}
                wait = {"name": "WAIT_APPROVAL", "with": options}
                stages = [stage(0), wait, stage(2, code=code)]
            case Shape.ANALYSIS:
                stages = [{"name": "ANALYSIS", "with": {"duration": "3s"}}, stage(1, code=code)]
            case Shape.CHAIN:
                spec["postSync"] = {"chain": {"applications": [{"name": application.follower}]}}
            case Shape.FOLLOWER:
                spec["trigger"] = {"onChain": {"disabled": False}, "onCommit": {"disabled": True}}
            case Shape.EVENTS:
                spec["eventWatcher"] = [_event_watcher(application.event)]
            case Shape.PLAIN:
                pass
        return {**spec, "pipeline": {"stages": stages}}

    def _process(
        self, application: FaultyApplication, revision: Revision
    ) -> tuple[dict[str, Any], dict[str, str]]:
        program = (
            f'echo "start {application.name} - $PIPECD_COMMIT $$ {NOW} $PIPECD_VARIANT ${SETTING}" >> {self.truth}\n'
            f"{'exit 1' if revision.fails else 'exec sleep 1000000'}\n"
        )
        options = {
            "command": "sh",
            "args": ["run.sh"],
            "env": {SETTING: revision.setting},
            "healthCheck": {"interval": "200ms", "timeout": "5s"},
            "gracePeriod": "1s",
        }
        stages = [{"name": "PROCESS_CANARY_ROLLOUT"}, {"name": "PROCESS_PRIMARY_ROLLOUT"}, {"name": "PROCESS_CANARY_CLEAN"}]  # fmt: skip
        spec: dict[str, Any] = {"plugins": {"process": {"input": options}}}
        if application.name.endswith("1"):
            spec["pipeline"] = {"stages": stages}
        return spec, {"run.sh": f"# {revision.nonce}\n{program}"}

    def _terraform(
        self, application: FaultyApplication, revision: Revision
    ) -> tuple[dict[str, Any], dict[str, str]]:
        state = self.directory / "states" / f"{application.name}.tfstate"

        def record(what: str) -> str:
            # Terraform replaces the variable of the configuration.
            setting = "${var.setting}"
            return f'echo "{what} {application.name} - - $$ {NOW} {revision.nonce} {setting}" >> {self.truth}'

        lock = f"exec 9>{self.truth}.{application.name}; flock -n 9 || {record('overlap')}"
        hcl = (
            f'terraform {{\n  backend "local" {{\n    path = "{state}"\n  }}\n}}\n'
            'variable "setting" {\n  default = ""\n}\n'
            'resource "terraform_data" "web" {\n'
            f'  input = "{revision.nonce}"\n  triggers_replace = "{revision.nonce}"\n'
            '  provisioner "local-exec" {\n'
            f"    command = <<-EOT\n      {lock}\n      {record('apply')}\n      sleep 0.2\n"
            f"      exit {int(revision.fails)}\n    EOT\n  }}\n}}\n"
        )
        settings = {"vars": [f"setting={revision.setting}"]}
        return {"plugins": {"terraform": settings}}, {"main.tf": hcl}

    def _kubernetes(
        self, application: FaultyApplication, revision: Revision
    ) -> tuple[dict[str, Any], dict[str, str]]:
        labels = {"app": application.name}
        config = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": application.name},
            "data": {"revision": str(revision.nonce)},
        }
        container = {"name": "web", "image": f"web:{revision.nonce}"}
        deployment = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": application.name, "labels": labels},
            "spec": {
                # A negative number is refused by the API server.
                "replicas": -1 if revision.fails else 1,
                "selector": {"matchLabels": {**labels, "pipecd.dev/variant": "primary"}},
                "template": {
                    "metadata": {"labels": {**labels, "pipecd.dev/variant": "primary"}},
                    "spec": {"containers": [container]},
                },
            },
        }
        chosen, other = (f"setting-{(revision.nonce // 1000 + n) % 2}.yaml" for n in (0, 1))
        manifests = ["config.yaml", "deployment.yaml", chosen]
        options = {"namespace": self.namespace, "manifests": manifests}
        spec: dict[str, Any] = {"plugins": {"kubernetes": {"input": options}}}
        if application.name.endswith("1"):
            stages = ({"name": name} for name in ("K8S_CANARY_ROLLOUT", "K8S_PRIMARY_ROLLOUT", "K8S_CANARY_CLEAN"))  # fmt: skip
            spec["pipeline"] = {"stages": list(stages)}
        return spec, {
            "config.yaml": json.dumps(config),
            "deployment.yaml": json.dumps(deployment),
            chosen: _setting_manifest(application.name, revision.setting),
            other: _setting_manifest(application.name, "of a manifest that is not deployed"),
        }


def setting_object(application: str) -> str:
    """The name of the ConfigMap that has the setting."""
    return f"{application}-setting"


def _setting_manifest(application: str, setting: str) -> str:
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": setting_object(application)},
            "data": {SETTING_LABEL: setting},
        }
    )


def _event_watcher(event: str) -> dict[str, Any]:
    replacement = {"file": EVENT_FILE, "yamlField": "$.tag"}
    options = {"commitMessage": "event {{ .Value }}", "replacements": [replacement]}
    return {
        "matcher": {"name": event},
        "handler": {"type": "GIT_UPDATE", "config": options},
    }


def values(tag: str = "v0") -> Mapping[str, str]:
    """The file that events write to."""
    return {EVENT_FILE: f"tag: {tag}\n"}
