# SPDX-License-Identifier: Apache-2.0
"""A whole piped turns an event into a commit and the commit into a deployment."""

from pipecd.controlplane.datastore.deployments import DeploymentFilter
from pipecd.model.deployment import DeploymentStatus
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.service.api_pb2 import RegisterEventRequest
from servers.control_plane import RunPiped, StartControlPlane
from servers.origin import Origin
from servers.polling import eventually

APP = """\
apiVersion: pipecd.dev/v1beta1
kind: Application
spec:
  name: cart
  pipeline:
    stages:
      - {name: SCRIPT_RUN, with: {run: "grep v2 tag.json"}}
  eventWatcher:
    - matcher: {name: image}
      handler:
        type: GIT_UPDATE
        config:
          commitMessage: "use {{ .Value }}"
          replacements: [{file: tag.json, jsonField: $.tag}]
"""


async def test_an_event_is_deployed(
    start_plane: StartControlPlane, whole_piped: RunPiped, origin: Origin
) -> None:
    origin.git("config", "receive.denyCurrentBranch", "updateInstead")
    origin.commit({"cart/app.pipecd.yaml": APP, "cart/tag.json": '{"tag": "v1"}'})
    async with start_plane() as plane, whole_piped(plane, origin.remote) as piped:
        await piped.add_application("cart")
        cases = plane.cases
        event = RegisterEventRequest(name="image", data="v2", commit_hash="abc")
        await cases.events.register(event, by=plane.admin)

        async def deployed() -> Deployment | None:
            every = DeploymentFilter(project="demo")
            listed = await cases.deployments.list(every, by=plane.admin)
            return next(
                (
                    d
                    for d in listed.items
                    if "use v2" in d.trigger.commit.message and d.completed_at
                ),
                None,
            )

        deployment = await eventually(deployed, 30)
    assert DeploymentStatus(deployment.status) is DeploymentStatus.SUCCESS
    assert deployment.trigger.commit.hash == origin.git("rev-parse", "main")
    assert deployment.deployment_trace_commit_hash == "abc"
