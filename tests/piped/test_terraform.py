# SPDX-License-Identifier: Apache-2.0
"""A push is planned, approved and applied by the real Terraform through a whole piped."""

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipecd.controlplane.datastore.deployments import DeploymentFilter
from pipecd.model.application import ApplicationKind
from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.proto.model.deployment_pb2 import DeployTargets
from servers.control_plane import RunPiped, StartControlPlane
from servers.origin import Origin
from servers.polling import eventually

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "terraform.md"
HCL, CONFIG, *_ = re.findall(r"^```(?:hcl|yaml)\n(.*?)^```$", GUIDE.read_text(), re.M | re.S)


@dataclass(frozen=True)
class Generation:
    """The sample of the guide in one generation of configuration."""

    config: dict[str, Any]
    piped: dict[str, Any]
    fields: dict[str, Any]

    def files(self, state: Path, release: str, hcl: str = HCL) -> dict[str, str]:
        section = {"vars": [f"release={release}"]}
        spec: dict[str, Any] = self.config["spec"]
        if self.config["kind"] == "TerraformApp":
            spec = {**spec, "input": {**section, "autoRollback": True}}
        else:
            spec = {**spec, "plugins": {"terraform": section}}
        return {
            "shop/app.pipecd.yaml": json.dumps({**self.config, "spec": spec}),
            "shop/main.tf": hcl.replace("/var/lib/shop/terraform.tfstate", str(state)),
        }


@pytest.fixture(params=["first", "second"])
def generation(request: pytest.FixtureRequest) -> Generation:
    config = yaml.safe_load(CONFIG)
    target = {"name": "here", "config": {}}
    if request.param == "second":
        chosen = {"terraform": DeployTargets(deploy_targets=["here"])}
        plugins = {"plugins": [{"name": "terraform", "deployTargets": [target]}]}
        return Generation(config, plugins, {"deploy_targets_by_plugin": chosen})
    stages = config["spec"]["pipeline"]
    # In this generation the pipeline is always used.
    config = {**config, "kind": "TerraformApp", "spec": {"name": "shop", "pipeline": stages}}
    providers = {"platformProviders": [{"type": "TERRAFORM", **target}]}
    fields = {"platform_provider": "here", "kind": ApplicationKind.TERRAFORM}
    return Generation(config, providers, fields)


@pytest.fixture
def terraform_is_here(terraform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("TF_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", str(Path(terraform).parent), prepend=os.pathsep)


@pytest.mark.slow
@pytest.mark.usefixtures("terraform_is_here")
async def test_the_sample_of_the_guide_is_approved_applied_and_rolled_back(
    start_plane: StartControlPlane,
    origin: Origin,
    whole_piped: RunPiped,
    generation: Generation,
    tmp_path: Path,
) -> None:
    state = tmp_path / "terraform.tfstate"

    def applied() -> dict[str, str]:
        resources = json.loads(state.read_bytes())["resources"] if state.exists() else []
        return {
            each["name"]: each["instances"][0]["attributes"]["input"]["value"]
            for each in resources
            if "input" in each["instances"][0]["attributes"]
        }

    async def deployments() -> list[Any]:
        listed = await plane.cases.deployments.list(
            DeploymentFilter(project="demo"), by=plane.admin
        )
        return sorted(listed.items, key=lambda deployment: -deployment.created_at)

    async def waiting() -> Any:
        return next(
            (
                (deployment.id, stage.id)
                for deployment in await deployments()
                for stage in deployment.stages
                if stage.name == "WAIT_APPROVAL" and stage.status == StageStatus.RUNNING
            ),
            None,
        )

    def ended(count: int) -> Any:
        async def ask() -> Any:
            done = [d for d in await deployments() if DeploymentStatus(d.status).is_completed]
            return done[0] if len(done) == count else None

        return ask

    origin.commit(generation.files(state, "v1"))
    more = "".join(f"{key}: {json.dumps(value)}\n" for key, value in generation.piped.items())
    async with start_plane() as plane, whole_piped(plane, origin.remote, more=more) as piped:
        await piped.add_application("shop", **generation.fields)
        approval = await eventually(waiting, 60)
        assert applied() == {}
        await plane.cases.deployments.approve(*approval, by=plane.admin)
        first = await eventually(ended(1), 60)
        assert DeploymentStatus(first.status) is DeploymentStatus.SUCCESS, first.status_reason
        assert applied() == {"shop": "v1"}
        # Half of the second commit is applied when it fails.
        failing = HCL + (
            'resource "terraform_data" "broken" {\n'
            "  depends_on = [terraform_data.shop]\n"
            '  provisioner "local-exec" {\n    command = "false"\n  }\n}\n'
        )
        origin.commit(generation.files(state, "v2", failing))
        await plane.cases.deployments.approve(*await eventually(waiting, 60), by=plane.admin)
        second = await eventually(ended(2), 60)
        assert DeploymentStatus(second.status) is DeploymentStatus.FAILURE
        stages = {stage.name: StageStatus(stage.status) for stage in second.stages}
        assert stages["TERRAFORM_APPLY"] is StageStatus.FAILURE
        assert stages["TERRAFORM_ROLLBACK"] is StageStatus.SUCCESS
        assert applied() == {"shop": "v1"}
        # A commit that changes nothing ends after its plan.
        origin.commit({**generation.files(state, "v1"), "shop/README.md": "x"})
        third = await eventually(ended(3), 60)
        assert DeploymentStatus(third.status) is DeploymentStatus.SUCCESS
        assert third.stages[0].status == StageStatus.EXITED
