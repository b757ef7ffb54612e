# SPDX-License-Identifier: Apache-2.0
"""A whole piped starts with the plugins that can start, and says why the others cannot."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from textwrap import dedent

import pytest

from pipecd.controlplane.datastore.deployments import DeploymentFilter
from pipecd.model.application import ApplicationKind, SyncStatus
from pipecd.model.deployment import DeploymentStatus
from pipecd.proto.model.deployment_pb2 import Deployment
from servers.control_plane import RunPiped, ServedControlPlane, StartControlPlane
from servers.origin import Origin
from servers.polling import eventually
from servers.samples import CART, WAITING_CART

pytestmark = pytest.mark.slow

GREETER = f"""#!{sys.executable}
import asyncio
from pipecd.sdk import Stage, StageContext, StagePlugin, StageResult, serve

class Greet(StagePlugin):
    stages = (Stage("GREET"),)

    async def execute(self, stage: StageContext) -> StageResult:
        stage.log.info("lingering")
        await asyncio.sleep(60)
        return StageResult.succeeded("Hello")

serve(Greet)
"""

ECS = int(ApplicationKind.ECS)

Write = Callable[[str], Path]

# The configuration of each plugin, and the reason why it does not run.
PLUGINS = {
    "dance": ("", "no built-in plugin is named dance, write the url of its program"),
    "ending": (
        "url: 'file://PROGRAM'",
        "plugin ending ended with exit code 3 instead of starting; its last output was:\n"
        "the licence is missing",
    ),
    "missing": ("url: 'file:///nowhere/greeter'", "/nowhere/greeter"),
    "strange": ("url: 'ftp://host/greeter'", "only file, https and oci schemes are supported"),
    "charts": (
        "url: 'builtin://kubernetes', config: {chartRepositories: [{name: a}]}, "
        "deployTargets: [{name: p}]",
        "config.chartRepositories[0].address: address must be set",
    ),
    "ecs": ("deployTargets: [{name: p}]", "config.region: region must be set"),
    "kubernetes": ("", "plugin kubernetes requires at least one deploy target to be configured"),
}


@pytest.fixture
def program(tmp_path: Path) -> Write:
    """Writes the program of a plugin."""

    def write(text: str) -> Path:
        path = tmp_path / "plugin"
        path.write_text(text)
        path.chmod(0o755)
        return path

    return write


async def ended(plane: ServedControlPlane, application: str) -> Deployment:
    """The latest deployment of an application, once it has ended."""
    of_application = DeploymentFilter(project=plane.admin.project, application_ids=(application,))

    async def completed() -> Deployment | None:
        listed = (await plane.cases.deployments.list(of_application, by=plane.admin)).items
        is_completed = listed and DeploymentStatus(listed[0].status).is_completed
        return listed[0] if is_completed else None

    return await eventually(completed, 30)


async def test_plugins_that_cannot_start_leave_the_others_running(
    start_plane: StartControlPlane, whole_piped: RunPiped, origin: Origin, program: Write
) -> None:
    ending = program("#!/bin/sh\necho the licence is missing >&2\nexit 3\n")
    files = {f"{name}/app.pipecd.yaml": f"{CART}  plugins: {{{name}: {{}}}}\n" for name in PLUGINS}
    origin.commit({"cart/app.pipecd.yaml": WAITING_CART, **files})
    entries = [f"  - {{name: {name}, {entry}}}\n" for name, (entry, _) in PLUGINS.items()]
    more = f"plugins:\n{''.join(entries)}".replace("PROGRAM", str(ending))
    async with start_plane() as plane, whole_piped(plane, origin.remote, more=more) as piped:
        ids = {name: await piped.add_application(name) for name in ("cart", *PLUGINS)}
        assert (await ended(plane, ids["cart"])).status == DeploymentStatus.SUCCESS
        for name, (_, reason) in PLUGINS.items():
            deployment = await ended(plane, ids[name])
            assert deployment.status == DeploymentStatus.FAILURE
            assert f"plugin {name} is not running: " in deployment.status_reason
            assert reason in deployment.status_reason

        async def is_unknown(name: str) -> bool:
            state = (await plane.application(ids[name])).sync_state
            return state.status == SyncStatus.UNKNOWN and PLUGINS[name][1] in state.reason

        for name in PLUGINS:
            await eventually(lambda name=name: is_unknown(name), 20)
        reported = await plane.cases.pipeds.plugin_failures(piped.id, by=plane.admin)
        reasons = {failure.plugin: failure.reason for failure in reported if not failure.target}
        assert reasons.keys() == PLUGINS.keys()
        assert all(PLUGINS[name][1] in reasons[name] for name in PLUGINS)
        listed = await plane.cases.pipeds.get(piped.id, by=plane.admin)
        assert {plugin.name for plugin in listed.plugins} == PLUGINS.keys()


async def test_a_platform_provider_with_a_mistake_leaves_the_others_usable(
    start_plane: StartControlPlane, whole_piped: RunPiped, origin: Origin
) -> None:
    more = dedent("""\
    platformProviders:
      - {name: far, type: ECS, config: {profile: p}}
      - {name: moon, type: MOON}
    """)
    shop = dedent("""\
    apiVersion: pipecd.dev/v1beta1
    kind: ECSApp
    spec:
      name: shop
      input: {serviceDefinitionFile: s.yaml, taskDefinitionFile: t.yaml}
    """)
    origin.commit({"cart/app.pipecd.yaml": WAITING_CART, "shop/app.pipecd.yaml": shop})
    async with start_plane() as plane, whole_piped(plane, origin.remote, more=more) as piped:
        cart = await piped.add_application("cart")
        shop = await piped.add_application("shop", platform_provider="far", kind=ECS)
        assert (await ended(plane, cart)).status == DeploymentStatus.SUCCESS
        refused = await ended(plane, shop)
        assert refused.status == DeploymentStatus.FAILURE
        assert "config.region: region must be set" in refused.status_reason
        listed = await plane.cases.pipeds.get(piped.id, by=plane.admin)
        providers = [(each.name, each.type) for each in listed.platform_providers]
        assert providers == [("far", "ECS"), ("moon", "MOON")]


async def test_a_plugin_is_tried_again_and_stages_that_have_begun_wait_for_it(
    start_plane: StartControlPlane, origin: Origin, program: Write
) -> None:
    origin.commit({"cart/app.pipecd.yaml": f"{CART}  pipeline: {{stages: [{{name: GREET}}]}}\n"})
    more = f"plugins: [{{name: greeter, url: 'file://{program(GREETER)}'}}]\n"
    async with start_plane() as plane:
        piped = await plane.register_piped("dev")

        async def log_of_stage() -> str:
            listed = await plane.cases.deployments.list(
                DeploymentFilter(project=plane.admin.project), by=plane.admin
            )
            parts = [
                part
                for deployment in listed.items
                for part in (
                    await plane.cases.logs.of_deployment(deployment.id, by=plane.admin)
                ).values()
            ]
            return "\n".join(block.log for part in parts for block in part.blocks)

        async with piped.run(origin.remote, more=more):
            cart = await piped.add_application("cart")
            await eventually(lambda: is_in_log("lingering", log_of_stage), 30)
        await asyncio.to_thread(program, "#!/bin/false")
        async with piped.run(origin.remote, more=more):
            await eventually(lambda: is_in_log("plugin greeter is not running", log_of_stage), 30)
            failures = await plane.cases.pipeds.plugin_failures(piped.id, by=plane.admin)
            assert [failure.plugin for failure in failures] == ["greeter"]
            await asyncio.to_thread(program, GREETER.replace("sleep(60)", "sleep(0)"))
            assert (await ended(plane, cart)).status == DeploymentStatus.SUCCESS

            async def is_forgotten() -> bool:
                return not await plane.cases.pipeds.plugin_failures(piped.id, by=plane.admin)

            await eventually(is_forgotten, 30)


async def is_in_log(text: str, read: Callable[[], Awaitable[str]]) -> bool:
    return text in await read()
