# SPDX-License-Identifier: Apache-2.0
"""An application on ECS: its commits are directories, its account is moto behind `Amazon`."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipecd.plugins.ecs.plugin import EcsPlugin
from pipecd.sdk import DeployTarget, PluginEntry
from pipecd.sdk.testing import MemoryHost, StageBench
from servers.amazon import REGION, Amazon
from servers.amazon_ecs import EcsRules, ElbRules, task_definition

EXTERNAL: dict[str, Any] = {
    "cluster": "prod",
    "serviceName": "web",
    "desiredCount": 4,
    "deploymentController": {"type": "EXTERNAL"},
    "launchType": "FARGATE",
}
ROLLING: dict[str, Any] = {
    "cluster": "prod",
    "serviceName": "web",
    "desiredCount": 4,
    "launchType": "FARGATE",
}


@dataclass
class Balancer:
    """A load balancer with a target group for primary and one for canary."""

    amazon: Amazon
    name: str = "lb"
    arn: str = ""
    vpc: str = ""
    protocol: str = ""
    primary: str = ""
    canary: str = ""

    def create(self, *, kind: str = "application") -> "Balancer":
        ec2, elb = self.amazon.client("ec2"), self.amazon.client("elbv2")
        subnets = [subnet["SubnetId"] for subnet in ec2.describe_subnets()["Subnets"]][:2]
        self.vpc = ec2.describe_vpcs()["Vpcs"][0]["VpcId"]
        made = elb.create_load_balancer(Name=self.name, Subnets=subnets, Type=kind)
        self.arn = made["LoadBalancers"][0]["LoadBalancerArn"]
        self.protocol = "HTTP" if kind == "application" else "TCP"
        self.primary, self.canary = self.target_group("primary"), self.target_group("canary")
        return self

    def target_group(self, name: str) -> str:
        made = self.amazon.client("elbv2").create_target_group(
            Name=f"{self.name}-{name}",
            Protocol=self.protocol,
            Port=80,
            TargetType="ip",
            VpcId=self.vpc,
        )
        return made["TargetGroups"][0]["TargetGroupArn"]

    def add_unhealthy_target(self, group: str, address: str, *said: str) -> None:
        """Registers a target with a state, a reason and a description."""
        self.amazon.client("elbv2").register_targets(
            TargetGroupArn=group, Targets=[{"Id": address, "Port": 80}]
        )
        rules = self.amazon.rules["elbv2"]
        assert isinstance(rules, ElbRules)
        state, reason, description = said
        rules.unhealthy[address] = (state, reason, description)

    def forward(self, *weights: tuple[str, int], **config: Any) -> dict[str, Any]:
        groups = [{"TargetGroupArn": arn, "Weight": weight} for arn, weight in weights]
        return {"Type": "forward", "ForwardConfig": {"TargetGroups": groups, **config}}

    @property
    def split(self) -> dict[str, Any]:
        return self.forward((self.primary, 100), (self.canary, 0))

    def listener(self, port: int, *actions: dict[str, Any]) -> str:
        made = self.amazon.client("elbv2").create_listener(
            LoadBalancerArn=self.arn,
            Protocol=self.protocol,
            Port=port,
            DefaultActions=list(actions) or [self.split],
        )
        return made["Listeners"][0]["ListenerArn"]

    def rule(self, listener: str, priority: int, *actions: dict[str, Any]) -> str:
        made = self.amazon.client("elbv2").create_rule(
            ListenerArn=listener,
            Priority=priority,
            Conditions=[{"Field": "path-pattern", "Values": [f"/{priority}"]}],
            Actions=list(actions),
        )
        return made["Rules"][0]["RuleArn"]

    def weights(self, listener: str) -> dict[str, int]:
        """The weights of the default rule, by variant or target group."""
        elb = self.amazon.client("elbv2")
        [described] = elb.describe_listeners(ListenerArns=[listener])["Listeners"]
        return self._weights(described["DefaultActions"])

    def rule_weights(self, rule: str) -> dict[str, int]:
        elb = self.amazon.client("elbv2")
        [described] = elb.describe_rules(RuleArns=[rule])["Rules"]
        return self._weights(described["Actions"])

    def _weights(self, actions: list[dict[str, Any]]) -> dict[str, int]:
        names: dict[str, str] = {self.primary: "primary", self.canary: "canary"}
        forward = next(each for each in actions if each["Type"] == "forward")
        weights: dict[str, int] = {}
        for group in forward["ForwardConfig"]["TargetGroups"]:
            arn = str(group["TargetGroupArn"])
            weights[names.get(arn, arn)] = group.get("Weight", 1)
        return weights

    @property
    def input(self) -> dict[str, Any]:
        """The target groups in the input of an application."""
        place = {"containerName": "web", "containerPort": 80}
        return {
            "targetGroups": {
                "primary": {"targetGroupArn": self.primary, **place},
                "canary": {"targetGroupArn": self.canary, **place},
            }
        }


@dataclass
class Application:
    """The application, deployed by one plugin."""

    directory: Path
    plugin: EcsPlugin
    host: MemoryHost
    amazon: Amazon
    input: dict[str, Any] = field(default_factory=dict[str, Any])
    quick_sync: dict[str, Any] = field(default_factory=dict[str, Any])
    spec: dict[str, Any] = field(default_factory=dict[str, Any])
    target: dict[str, Any] = field(default_factory=dict[str, Any])
    kind: str = "Application"

    @property
    def rules(self) -> EcsRules:
        """What ECS does."""
        rules = self.amazon.rules["ecs"]
        assert isinstance(rules, EcsRules)
        return rules

    @property
    def failing(self) -> dict[str, str]:
        """The images whose tasks stop, and why."""
        return self.rules.failing

    def slow_down(self, *, is_slow: bool = True) -> None:
        """Lets tasks take a long time to start, or no longer."""
        self.rules.is_slow = is_slow

    def commit(
        self,
        image: str,
        service: dict[str, Any] | None = EXTERNAL,
        *,
        running: StageBench | None = None,
        **task: Any,
    ) -> StageBench:
        """Returns a commit with this image; its name is that of the image."""
        directory = self.directory / image.replace(":", "-").replace("/", "-")
        directory.mkdir(exist_ok=True)
        (directory / "taskdef.json").write_text(task_definition(image, **task))
        given = dict(self.input)
        if service is not None:
            (directory / "servicedef.yaml").write_text(json.dumps(service))
            given["serviceDefinitionFile"] = "servicedef.yaml"
        section = {"input": given, "quickSync": self.quick_sync}
        inner = {"plugins": {"ecs": section}} if self.kind == "Application" else section
        spec = {"name": "tested", **inner, **self.spec}
        config = {"apiVersion": "pipecd.dev/v1beta1", "kind": self.kind, "spec": spec}
        target = {"region": REGION, "endpoint": self.amazon.url, **self.target}
        return StageBench(
            self.plugin,
            directory,
            entry=PluginEntry("ecs", {}, (DeployTarget("aws", {}, target),)),
            host=self.host,
            commit=image.replace(":", "-"),
            config=json.dumps(config),
            running=running,
        )

    def next_stage(self) -> None:
        """Lets the next stage begin without metadata; that of the deployment stays."""
        self.host.stage_metadata.clear()

    @property
    def service(self) -> dict[str, Any]:
        ecs = self.amazon.client("ecs")
        [found] = ecs.describe_services(cluster="prod", services=["web"], include=["TAGS"])[
            "services"
        ]
        return found

    @property
    def task_sets(self) -> list[tuple[str, str, float]]:
        """The image, status and scale of all task sets, the primary one first."""
        ecs = self.amazon.client("ecs")
        found = [
            (self.image(each["taskDefinition"]), each["status"], each["scale"]["value"])
            for each in ecs.describe_task_sets(cluster="prod", service="web")["taskSets"]
        ]
        return sorted(found, key=lambda each: (each[1] != "PRIMARY", each))

    def image(self, arn: str) -> str:
        described = self.amazon.client("ecs").describe_task_definition(taskDefinition=arn)
        return described["taskDefinition"]["containerDefinitions"][0]["image"]
