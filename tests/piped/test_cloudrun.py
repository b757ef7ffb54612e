# SPDX-License-Identifier: Apache-2.0
"""A push becomes a canary on Cloud Run through a whole piped, is promoted or rolled back."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipecd.model.application import ApplicationKind
from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.proto.model.deployment_pb2 import DeployTargets
from servers.cloud_run import CloudRun
from servers.control_plane import RunPiped, StartControlPlane
from servers.deployment_watch import DeploymentWatch, statuses
from servers.origin import Origin

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "cloud-run.md"
MANIFEST, CONFIG, *_ = re.findall(r"^```yaml\n(.*?)^```$", GUIDE.read_text(), re.M | re.S)


@dataclass(frozen=True)
class Generation:
    """The sample of the guide in one generation of configuration."""

    config: str
    piped: dict[str, Any]
    fields: dict[str, Any]

    def files(self, tag: str) -> dict[str, str]:
        return {
            "shop/app.pipecd.yaml": self.config,
            "shop/service.yaml": MANIFEST.replace("shop:v1", f"shop:{tag}"),
        }


@pytest.fixture
def cloud_run(tmp_path: Path) -> Iterator[CloudRun]:
    server = CloudRun(tmp_path)
    yield server
    server.close()


@pytest.fixture(params=["first", "second"])
def generation(request: pytest.FixtureRequest, cloud_run: CloudRun) -> Generation:
    target = {"name": "run", "config": cloud_run.target}
    if request.param == "second":
        chosen = {"cloudrun": DeployTargets(deploy_targets=["run"])}
        plugins = {"plugins": [{"name": "cloudrun", "deployTargets": [target]}]}
        return Generation(CONFIG, plugins, {"deploy_targets_by_plugin": chosen})
    stages = yaml.safe_load(CONFIG)["spec"]["pipeline"]
    config = {
        "apiVersion": "pipecd.dev/v1beta1",
        "kind": "CloudRunApp",
        "spec": {"name": "shop", "pipeline": stages},
    }
    providers = {"platformProviders": [{"type": "CLOUDRUN", **target}]}
    fields = {"platform_provider": "run", "kind": ApplicationKind.CLOUDRUN}
    return Generation(json.dumps(config), providers, fields)


@pytest.mark.slow
async def test_the_sample_of_the_guide_is_promoted_and_rolled_back(
    start_plane: StartControlPlane,
    origin: Origin,
    whole_piped: RunPiped,
    generation: Generation,
    cloud_run: CloudRun,
) -> None:
    def tags() -> dict[str, int]:
        return {name.split("-")[1]: share for name, share in cloud_run.traffic("shop").items()}

    origin.commit(generation.files("v1"))
    more = "".join(f"{key}: {json.dumps(value)}\n" for key, value in generation.piped.items())
    async with start_plane() as plane, whole_piped(plane, origin.remote, more=more) as piped:
        watch = DeploymentWatch(plane)
        await piped.add_application("shop", **generation.fields)
        first = await watch.ended(1)
        assert DeploymentStatus(first.status) is DeploymentStatus.SUCCESS, first.status_reason
        assert tags() == {"v1": 100}
        origin.commit(generation.files("v2"))
        await watch.approval()
        assert tags() == {"v2": 10, "v1": 90}
        await watch.approve()
        second = await watch.ended(2)
        assert DeploymentStatus(second.status) is DeploymentStatus.SUCCESS, second.status_reason
        assert second.summary == "Sync with pipeline to update image from v1 to v2"
        assert tags() == {"v2": 100}
        cloud_run.broken_images["gcr.io/example/shop:v3"] = "the container failed to start"
        origin.commit(generation.files("v3"))
        third = await watch.ended(3)
        assert DeploymentStatus(third.status) is DeploymentStatus.FAILURE
        assert third.stages[0].status == StageStatus.FAILURE
        assert statuses(third)["CLOUDRUN_ROLLBACK"] is StageStatus.SUCCESS
        assert tags() == {"v2": 100}
        labels = cloud_run.services["shop"].body["metadata"]["labels"]
        assert labels["pipecd-dev-commit-hash"] == second.trigger.commit.hash
