# SPDX-License-Identifier: Apache-2.0
"""An application on each cloud, for tests of whole pipeds in both generations of configuration."""

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from pipecd.model.application import ApplicationKind
from pipecd.proto.model.deployment_pb2 import DeployTargets
from plugins.ecs.testbed import EXTERNAL, Balancer
from servers.amazon import ACCOUNT, REGION, Amazon, Call
from servers.amazon_ecs import task_definition
from servers.amazon_lambda import lambda_backend
from servers.cloud_run import CloudRun
from servers.control_plane import LocalControlPlane
from servers.origin import Origin
from servers.piped import piped_config
from servers.web import Request

# A piped that was killed starts again for every stage, perhaps on a busy machine.
SECONDS = 180
Fields = dict[str, Any]


@dataclass
class Interruption:
    """Keeps the answer to a request from its client until the client is killed."""

    is_it: Callable[[Any], bool]
    arrived: threading.Event = field(default_factory=threading.Event)
    killed: threading.Event = field(default_factory=threading.Event)

    def __call__(self, request: Any) -> None:
        if not self.arrived.is_set() and self.is_it(request):
            self.arrived.set()
            self.killed.wait(SECONDS)


@dataclass(frozen=True)
class Kill:
    """The stage, and the request after which piped is killed."""

    stage: str
    request: str
    where: Callable[[Any], bool] = lambda _: True


@dataclass(frozen=True)
class Canary:
    """How many stages of the pipeline start the canary, and what runs then."""

    stages: int
    state: Any


@dataclass(frozen=True)
class Cloud:
    """A platform with an application; its deployments are killed in each of their stages."""

    plugin: str
    kind: ApplicationKind
    v0_kind: str
    target: Fields
    stages: tuple[Fields, ...]
    files: Callable[[str], dict[str, str]]
    interrupt: Callable[[Interruption], None]
    is_request: Callable[[Kill, Any], bool]
    quick_sync: Kill
    pipeline: tuple[Kill, ...]
    rollback: Kill
    canary: Canary
    fail: Callable[[], None]
    """Lets the next deployment fail and roll back."""
    state: Callable[[], Any]
    expected: tuple[Any, Any, Any]
    """The state after each deployment."""
    count: Callable[[], int]
    """How many task sets, versions or revisions were created."""
    drift: Callable[[], object]
    """Changes what runs, as somebody else would."""
    drifted: str
    """What the difference shows then."""
    drifted_field: str
    """The changed field, as a rule of `driftDetection.ignoreFields`."""
    live_kinds: tuple[str, ...]
    """The kinds of the resources that run after the first deployment."""
    created: tuple[int, int, int] = (1, 2, 3)
    section: Fields = field(default_factory=dict[str, Any])

    def application(self, generation: str, **more: object) -> Fields:
        is_first = generation == "first"
        section = self.section if is_first else {"plugins": {self.plugin: self.section}}
        spec = {"name": "shop", "pipeline": {"stages": list(self.stages)}, **section, **more}
        kind = self.v0_kind if is_first else "Application"
        return {"apiVersion": "pipecd.dev/v1beta1", "kind": kind, "spec": spec}

    def with_approval(self, generation: str, *more: Fields) -> "Cloud":
        """Returns the application with a pipeline that waits for an approval after its canary.

        `more` are stages before the approval.
        """
        before = self.canary.stages
        approval: Fields = {"name": "WAIT_APPROVAL"}
        if generation == "second":
            approval["with"] = {"anyone": True}
        stages = (*self.stages[:before], *more, approval, *self.stages[before:])
        return replace(self, stages=stages)

    def piped(self, generation: str) -> Fields:
        target = {"name": "cloud", "config": self.target}
        if generation == "first":
            return {"platformProviders": [{"type": self.kind.name, **target}]}
        others = [{"name": name} for name in ("wait", "waitapproval")]
        return {"plugins": [{"name": self.plugin, "deployTargets": [target]}, *others]}

    def fields(self, generation: str) -> Fields:
        if generation == "first":
            return {"platform_provider": "cloud", "kind": self.kind}
        chosen = {self.plugin: DeployTargets(deploy_targets=["cloud"])}
        return {"deploy_targets_by_plugin": chosen}


def cloud_run_cloud(server: CloudRun) -> Cloud:
    def files(tag: str) -> dict[str, str]:
        spec = {"template": {"spec": {"containers": [{"image": f"gcr.io/example/shop:{tag}"}]}}}
        service = {
            "apiVersion": "serving.knative.dev/v1",
            "kind": "Service",
            "metadata": {"name": "shop"},
            "spec": spec,
        }
        return {"shop/service.yaml": json.dumps(service)}

    def is_request(kill: Kill, sent: Request) -> bool:
        return sent.method == kill.request and kill.where(json.loads(sent.body))

    def shares(*percents: int) -> Callable[[Any], bool]:
        return lambda body: [each["percent"] for each in body["spec"]["traffic"]] == [*percents]

    def use_other_image(body: Fields) -> None:
        container = body["spec"]["template"]["spec"]["containers"][0]
        container["image"] = "gcr.io/example/shop:other"

    return Cloud(
        plugin="cloudrun",
        kind=ApplicationKind.CLOUDRUN,
        v0_kind="CloudRunApp",
        target=server.target,
        stages=(
            {"name": "CLOUDRUN_PROMOTE", "with": {"percent": 10}},
            {"name": "CLOUDRUN_PROMOTE", "with": {"percent": 100}},
        ),
        files=files,
        interrupt=lambda interruption: setattr(server, "on_answer", interruption),
        is_request=is_request,
        quick_sync=Kill("CLOUDRUN_SYNC", "POST"),
        pipeline=(
            Kill("CLOUDRUN_PROMOTE", "PUT", shares(10, 90)),
            Kill("CLOUDRUN_PROMOTE", "PUT", shares(100)),
        ),
        canary=Canary(1, {"v2": 10, "v1": 90}),
        rollback=Kill("CLOUDRUN_ROLLBACK", "PUT", shares(100)),
        fail=lambda: server.broken_images.update({"gcr.io/example/shop:v3": "it crashes"}),
        state=lambda: {name.split("-")[1]: each for name, each in server.traffic("shop").items()},
        expected=({"v1": 100}, {"v2": 100}, {"v2": 100}),
        count=lambda: len(server.revisions),
        drift=lambda: server.edit("shop", use_other_image),
        drifted="gcr.io/example/shop:other",
        drifted_field="serving.knative.dev/v1:Service:any:shop#spec.template.spec.containers.0.image",
        live_kinds=("Revision", "Service"),
    )


def lambda_cloud(amazon: Amazon) -> Cloud:
    iam = amazon.client("iam")
    with suppress(iam.exceptions.EntityAlreadyExistsException):
        iam.create_role(RoleName="tests", AssumeRolePolicyDocument="{}")
    name, aws = f"shop-{uuid4().hex[:8]}", amazon.client("lambda")
    role = f"arn:aws:iam::{ACCOUNT}:role/tests"
    spec = {"name": name, "role": role, "memory": 128, "timeout": 3, "environments": {"A": "b"}}

    def files(tag: str) -> dict[str, str]:
        function = {**spec, "image": f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/shop:{tag}"}
        manifest = {"apiVersion": "pipecd.dev/v1beta1", "kind": "LambdaFunction", "spec": function}
        return {"shop/function.yaml": json.dumps(manifest)}

    def is_shared(parameters: Fields) -> bool:
        return bool(parameters["RoutingConfig"]["AdditionalVersionWeights"])

    def gets_all(parameters: Fields) -> bool:
        return not is_shared(parameters)

    def state() -> dict[str, int]:
        alias = aws.get_alias(FunctionName=name, Name="Service")
        others = (alias.get("RoutingConfig") or {}).get("AdditionalVersionWeights") or {}
        weights = {alias["FunctionVersion"]: 1 - sum(others.values()), **others}
        found: dict[str, int] = {}
        for version, weight in weights.items():
            code = aws.get_function(FunctionName=name, Qualifier=version)["Code"]
            found[code["ImageUri"].rpartition(":")[2]] = round(weight * 100)
        return found

    return Cloud(
        plugin="lambda",
        kind=ApplicationKind.LAMBDA,
        v0_kind="LambdaApp",
        target={"region": REGION, "endpoint": amazon.url},
        stages=(
            {"name": "LAMBDA_CANARY_ROLLOUT"},
            {"name": "LAMBDA_PROMOTE", "with": {"percent": 10}},
            {"name": "LAMBDA_PROMOTE", "with": {"percent": 100}},
        ),
        files=files,
        interrupt=lambda interruption: setattr(amazon, "on_answer", interruption),
        is_request=is_call,
        quick_sync=Kill("LAMBDA_SYNC", "CreateAlias"),
        pipeline=(
            Kill("LAMBDA_CANARY_ROLLOUT", "PublishVersion"),
            Kill("LAMBDA_PROMOTE", "UpdateAlias", is_shared),
            Kill("LAMBDA_PROMOTE", "UpdateAlias", gets_all),
        ),
        canary=Canary(2, {"v2": 10, "v1": 90}),
        rollback=Kill("LAMBDA_ROLLBACK", "UpdateAlias", gets_all),
        fail=lambda: amazon.refuse(
            "UpdateAlias", "AccessDeniedException", "no", times=1, where=gets_all
        ),
        state=state,
        expected=({"v1": 100}, {"v2": 100}, {"v2": 100}),
        count=lambda: len(lambda_backend()._lambdas._functions[name]["versions"]),
        drift=lambda: aws.update_function_configuration(FunctionName=name, MemorySize=512),
        drifted="memory: 512",
        drifted_field=f"pipecd.dev/v1beta1:LambdaFunction:any:{name}#spec.memory",
        live_kinds=("Function",),
    )


def ecs_cloud(amazon: Amazon) -> Cloud:
    aws = amazon.client("ecs")
    aws.create_cluster(clusterName="prod")
    balancer = Balancer(amazon).create()
    listener = balancer.listener(80)
    created: set[str] = set()

    def files(tag: str) -> dict[str, str]:
        return {
            "shop/taskdef.json": task_definition(f"shop:{tag}"),
            "shop/service.json": json.dumps(EXTERNAL),
        }

    def image(arn: str) -> str:
        task = aws.describe_task_definition(taskDefinition=arn)["taskDefinition"]
        return task["containerDefinitions"][0]["image"].rpartition(":")[2]

    def state() -> Any:
        sets = aws.describe_task_sets(cluster="prod", service="web")["taskSets"]
        shown = [(image(e["taskDefinition"]), e["status"], e["scale"]["value"]) for e in sets]
        return sorted(shown), balancer.weights(listener)

    def interrupt(interruption: Interruption) -> None:
        def answered(call: Call) -> None:
            if call.operation == "CreateTaskSet":
                sets = aws.describe_task_sets(cluster="prod", service="web")["taskSets"]
                created.update(each["taskSetArn"] for each in sets)
            interruption(call)

        amazon.on_answer = answered

    def serving(tag: str) -> Any:
        return [(tag, "PRIMARY", 100.0)], {"primary": 100, "canary": 0}

    return Cloud(
        plugin="ecs",
        kind=ApplicationKind.ECS,
        v0_kind="ECSApp",
        target={"region": REGION, "endpoint": amazon.url},
        stages=(
            {"name": "ECS_CANARY_ROLLOUT", "with": {"scale": 50}},
            {"name": "ECS_TRAFFIC_ROUTING", "with": {"canary": 10}},
            {"name": "ECS_PRIMARY_ROLLOUT"},
            {"name": "ECS_TRAFFIC_ROUTING", "with": {"primary": 100}},
            {"name": "ECS_CANARY_CLEAN"},
        ),
        files=files,
        interrupt=interrupt,
        is_request=is_call,
        quick_sync=Kill("ECS_SYNC", "CreateTaskSet"),
        pipeline=(
            Kill("ECS_CANARY_ROLLOUT", "CreateTaskSet"),
            Kill("ECS_TRAFFIC_ROUTING", "ModifyListener"),
            Kill("ECS_PRIMARY_ROLLOUT", "UpdateServicePrimaryTaskSet"),
            Kill("ECS_TRAFFIC_ROUTING", "ModifyListener"),
            Kill("ECS_CANARY_CLEAN", "DeleteTaskSet"),
        ),
        canary=Canary(
            2,
            ([("v1", "PRIMARY", 100.0), ("v2", "ACTIVE", 50.0)], {"primary": 90, "canary": 10}),
        ),
        rollback=Kill("ECS_ROLLBACK", "DeleteTaskSet"),
        fail=lambda: amazon.refuse(
            "UpdateServicePrimaryTaskSet", "AccessDeniedException", "no", times=1
        ),
        state=state,
        expected=(serving("v1"), serving("v2"), serving("v2")),
        count=lambda: len(created),
        # One for the sync, and a canary and a primary one for each pipeline.
        created=(1, 3, 5),
        drift=lambda: aws.update_service(cluster="prod", service="web", desiredCount=9),
        drifted="DesiredCount: 9",
        drifted_field="web#ServiceDefinition.DesiredCount",
        live_kinds=("ECS:Service", "ECS:Task", "ECS:TaskSet"),
        section={"input": {"serviceDefinitionFile": "service.json", **balancer.input}},
    )


def is_call(kill: Kill, call: Call) -> bool:
    return call.operation == kill.request and kill.where(call.parameters)


def open_cloud(name: str, directory: Path, amazon: Amazon, request: pytest.FixtureRequest) -> Cloud:
    """Returns the cloud of a plugin."""
    if name == "ecs":
        return ecs_cloud(amazon)
    if name == "lambda":
        return lambda_cloud(amazon)
    server = CloudRun(directory)
    request.addfinalizer(server.close)
    return cloud_run_cloud(server)


async def add_application(
    plane: LocalControlPlane, origin: Origin, cloud: Cloud, generation: str, directory: Path
) -> tuple[Path, str]:
    """Adds the application; returns the configuration of its piped, and its id."""
    origin.commit({"shop/app.pipecd.yaml": json.dumps(cloud.application(generation))})
    home = directory / "piped"
    home.mkdir()
    config = home / "piped.yaml"
    piped = await plane.register_piped("dev")
    await piped.add_repository("site", origin.remote)
    more = {"syncInterval": "1s", **cloud.piped(generation)}
    rest = "".join(f"  {key}: {json.dumps(value)}\n" for key, value in more.items())
    place = {"address": plane.address, "remote": origin.remote, "project": "demo"}
    config.write_text(piped_config(piped.id, piped.key, **place, rest=rest))
    return config, await piped.add_application("shop", **cloud.fields(generation))
