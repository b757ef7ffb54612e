# SPDX-License-Identifier: Apache-2.0
"""Upstream's pipectl against our control plane, beside ours."""

import json
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pipecd.proto.model import common_pb2 as common
from pipecd.proto.model.apikey_pb2 import APIKey
from pipecd.proto.model.application_pb2 import Application
from pipecd.secrets import hybrid
from pipecd.wire.server import TlsFiles
from servers.installation import Agent, Completed
from servers.our_installation import OpenInstallation, OurInstallation
from servers.programs import OUR_PIPECTL, OUR_PIPED
from servers.samples import WAITING_CART

pytestmark = pytest.mark.slow


class Typed:
    """Types the same line to one pipectl or to both."""

    def __init__(self, installation: OurInstallation, upstream: Path) -> None:
        self._bed, self._upstream = installation, upstream

    async def upstream(self, line: str, *more: str) -> Completed:
        return await self._run(self._upstream, line, *more)

    async def same(self, line: str) -> Completed:
        """Both must print the same and end alike."""
        ours, theirs = await self._run(OUR_PIPECTL, line), await self._run(self._upstream, line)
        assert (ours.code, ours.out) == (theirs.code, theirs.out)
        return theirs

    async def same_refusal(self, line: str) -> str:
        """Both must exit with 1 and print the same gRPC code, which scripts match."""
        ours, theirs = await self._run(OUR_PIPECTL, line), await self._run(self._upstream, line)
        assert (ours.code, theirs.code) == (1, 1)
        code = re.search(r"rpc error: code = \w+", theirs.err)
        assert code, theirs.err
        assert code[0] in ours.err
        return str(theirs.err)

    async def _run(self, program: Path, line: str, *more: str) -> Completed:
        return await self._bed.run(program, *line.split(), *more, *self._bed.pipectl_flags())


TypedBy = Callable[[OurInstallation], Typed]


@pytest.fixture
def typed_by(upstream_pipectl: Path) -> TypedBy:
    return lambda installation: Typed(installation, upstream_pipectl)


ADD = "application add --app-name cart --app-kind TERRAFORM --platform-provider tf --repo-id site --labels env=dev --app-dir cart"


@asynccontextmanager
async def our_piped(installation: OurInstallation, agent: Agent) -> AsyncGenerator[None, None]:
    """Our own piped; once it is up, the control plane knows its repositories."""
    flags = ("--insecure", f"--workspace-dir={installation.directory / 'work'}", "--admin-port=0")
    config = f"--config-file={agent.config}"
    async with installation.running(OUR_PIPED, "run", config, *flags) as piped:
        await installation.eventually(lambda: installation.introduced(agent.id), piped)
        yield


async def test_upstreams_pipectl_adds_disables_and_deletes_an_application(
    open_installation: OpenInstallation, typed_by: TypedBy
) -> None:
    async with open_installation() as installation:
        typed, agent = typed_by(installation), await installation.register_piped("p")
        add = f"{ADD} --piped-id {agent.id}"
        assert "not found in the Piped configuration" in await typed.same_refusal(add)
        async with our_piped(installation, agent):
            added = await typed.upstream(add)
        assert added.code == 0, added.err
        id_ = added.err.split("id = ")[1].strip()

        one = json.loads((await typed.same(f"application get --app-id {id_}")).out)
        repository = {"id": "site", "remote": installation.origin.remote, "branch": "main"}
        assert one["git_path"]["repo"] == repository
        listed = json.loads((await typed.same("application list --app-kind TERRAFORM")).out)
        assert [a["id"] for a in listed["applications"]] == [id_]
        assert json.loads((await typed.same("application list --label env:prod")).out) == {}

        disabled = await typed.upstream(f"application disable --app-id {id_}")
        assert f"Successfully disable application id = {id_}" in disabled.err
        assert json.loads((await typed.same("application list")).out) == {}
        assert id_ in (await typed.same("application list --disabled")).out
        deleted = await typed.upstream(f"application delete --app-id {id_}")
        assert f"Successfully deleted application id = {id_}" in deleted.err
        assert (await installation.stores.applications.get(id_)).deleted


async def test_lists_are_read_page_by_page(
    open_installation: OpenInstallation, typed_by: TypedBy
) -> None:
    async with open_installation() as installation:
        typed, agent = typed_by(installation), await installation.register_piped("p")
        for name in ("cart", "shop", "till"):
            await installation.add_application(name, Application(name=name, piped_id=agent.id))
        first = json.loads((await typed.same("application list --limit 2")).out)
        rest = f"application list --limit 2 --cursor={first['cursor']}"
        second = json.loads((await typed.same(rest)).out)
        assert len(first["applications"]) == 2
        seen = [a["name"] for a in first["applications"] + second["applications"]]
        assert sorted(seen) == ["cart", "shop", "till"]


@pytest.mark.timeout(180)
async def test_a_sync_is_waited_for_and_its_logs_are_read(
    open_installation: OpenInstallation, typed_by: TypedBy
) -> None:
    async with open_installation() as installation:
        installation.origin.commit(
            {"cart/app.pipecd.yaml": WAITING_CART + "  labels: {env: dev}\n"}
        )
        typed, agent = typed_by(installation), await installation.register_piped("p")
        async with our_piped(installation, agent):
            added = await typed.upstream(f"{ADD} --piped-id {agent.id}")
            id_ = added.err.split("id = ")[1].strip()
            synced = await typed.upstream(
                f"application sync --app-id {id_} --check-interval 1s --timeout 60s",
                "--wait-status",
                "DEPLOYMENT_SUCCESS,DEPLOYMENT_FAILURE",
            )
            assert synced.code == 0, synced.err
            assert "Deployment is at DEPLOYMENT_SUCCESS status" in synced.err
            line = f"deployment list --app-id {id_} --status DEPLOYMENT_SUCCESS"
            listed = json.loads((await typed.same(line)).out)["deployments"]
            one = f"--deployment-id {listed[0]['id']}"
            wait = f"deployment wait-status {one} --status DEPLOYMENT_SUCCESS"
            waited = await typed.upstream(wait)
            assert waited.code == 0, waited.err
            logs = json.loads((await typed.same(f"deployment logs {one}")).out)
            assert logs["stage_logs"]
            assert all(log["completed"] for log in logs["stage_logs"].values())


async def test_an_event_is_registered_and_a_piped_switched_off_and_on(
    open_installation: OpenInstallation, typed_by: TypedBy
) -> None:
    async with open_installation(all_answered=True) as installation:
        typed, agent = typed_by(installation), await installation.register_piped("p")
        registered = await typed.upstream(
            "event register --name image --data v2 --labels env=dev,app=web --contexts a-b=c"
            " --commit-hash abc --commit-url https://example.com/c --commit-title t"
        )
        assert registered.code == 0, registered.err
        assert "Successfully registered event" in registered.err
        assert (await typed.same(f"piped disable --piped-id {agent.id}")).out
        assert (await installation.stores.pipeds.get(agent.id)).disabled
        assert (await typed.same(f"piped enable --piped-id {agent.id}")).out
        assert not (await installation.stores.pipeds.get(agent.id)).disabled


async def test_a_plan_preview_that_no_piped_answers(
    open_installation: OpenInstallation, typed_by: TypedBy
) -> None:
    async with open_installation() as installation:
        typed, out = typed_by(installation), installation.directory / "preview.json"
        preview = (
            f"plan-preview --repo-remote-url {installation.origin.remote} --base-branch main"
            " --head-branch b --head-commit c"
        )
        nobody = await typed.same(preview)
        assert "There is no piped that is handling the given Git repository" in nobody.out
        agent = await installation.register_piped("p")
        await installation.add_application("cart", Application(name="cart", piped_id=agent.id))
        # pipectl asks for the first time after ten seconds.
        unanswered = await typed.upstream(f"{preview} --timeout 15s --out {out}")
        assert unanswered.code == 0, unanswered.out + unanswered.err
        (failure,) = json.loads(out.read_text())["FailurePipeds"]
        assert (failure["PipedID"], failure["PipedName"]) == (agent.id, "p")
        assert failure["Reason"] == "Maybe Piped is offline currently."


async def test_a_secret_is_encrypted_for_its_piped(
    open_installation: OpenInstallation, typed_by: TypedBy, spec_dir: Path
) -> None:
    keys = spec_dir / "vectors"
    management = f"""\
  secretManagement:
    type: KEY_PAIR
    config: {{privateKeyFile: {keys}/secret_private.pem, publicKeyFile: {keys}/secret_public.pem}}
"""
    async with open_installation() as installation:
        secret = installation.directory / "secret"
        secret.write_text("pa55 wörd\n")
        typed, agent = typed_by(installation), await installation.register_piped("p")
        refused = await typed.same_refusal(f"encrypt --piped-id {agent.id} --input-file {secret}")
        assert "code = FailedPrecondition" in refused
        agent = await installation.register_piped("q", management)
        async with our_piped(installation, agent):
            done = await typed.upstream(f"encrypt --piped-id {agent.id} --input-file {secret}")
    assert done.code == 0, done.err
    private = (keys / "secret_private.pem").read_bytes()
    assert hybrid.decrypt(private, done.out.strip()) == "pa55 wörd\n"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        pytest.param("application get --app-id nobody", "code = NotFound", id="an unknown application"),
        pytest.param("application sync --app-id nobody", "code = NotFound", id="a sync of an unknown application"),
        pytest.param("application disable --app-id nobody", "code = NotFound", id="an unknown application to disable"),
        pytest.param("application delete --app-id nobody", "code = NotFound", id="an unknown application to delete"),
        pytest.param("deployment logs --deployment-id nobody", "code = NotFound", id="logs of an unknown deployment"),
        pytest.param("deployment wait-status --deployment-id nobody --status DEPLOYMENT_SUCCESS", "code = NotFound", id="an unknown deployment to wait for"),
        pytest.param("encrypt --piped-id nobody --input-file /dev/null", "code = ", id="an unknown piped to encrypt for"),
        pytest.param("application list --cursor x", "code = ", id="a cursor that is none"),
        pytest.param("event register --name= --data v", "code = InvalidArgument", id="an event without a name"),
    ],
)  # fmt: skip
async def test_refusals_have_the_same_code_in_both(
    line: str, words: str, open_installation: OpenInstallation, typed_by: TypedBy
) -> None:
    async with open_installation() as installation:
        assert words in await typed_by(installation).same_refusal(line)


async def test_a_key_that_may_not_and_a_key_that_is_none(
    open_installation: OpenInstallation, upstream_pipectl: Path
) -> None:
    async with open_installation() as installation:
        read_only = await installation.cases.api_keys.generate(
            "reader", APIKey.READ_ONLY, by=installation.admin
        )

        async def typed(key: str, *line: str) -> Completed:
            how = ("--address", installation.plane.address, "--insecure", "--api-key", key)
            return await installation.run(upstream_pipectl, *line, *how)

        assert (await typed(read_only, "application", "list")).code == 0
        denied = await typed(read_only, "event", "register", "--name", "a", "--data", "b")
        assert "code = PermissionDenied desc = Permission denied" in denied.err
        unknown = await typed("x.y", "application", "list")
        assert "code = Unauthenticated desc = Unauthenticated" in unknown.err


async def test_tls_is_spoken(
    open_installation: OpenInstallation, certificate: tuple[str, str], upstream_pipectl: Path
) -> None:
    async with open_installation(tls=TlsFiles(*certificate)) as installation:
        how = ("--address", installation.plane.address, "--api-key", installation.plane.api_key)
        line = ("application", "list", *how, "--cert-file", certificate[0])
        done = await installation.run(upstream_pipectl, *line)
        assert (done.code, json.loads(done.out)) == (0, {}), done.err


async def test_an_application_moves_to_the_plugin_generation(
    open_installation: OpenInstallation, typed_by: TypedBy
) -> None:
    async with open_installation(all_answered=True) as installation:
        agent = await installation.register_piped("p")
        draft = Application(
            name="cart", piped_id=agent.id, kind=common.ECS, platform_provider="cloud"
        )
        id_ = await installation.add_application("cart", draft)
        migrated = await typed_by(installation).upstream(f"migrate database --applications {id_}")
        assert migrated.code == 0, migrated.err
        application = await installation.stores.applications.get(id_)
        assert list(application.deploy_targets_by_plugin["ecs"].deploy_targets) == ["cloud"]


async def test_pipeds_and_applications_are_saved_and_brought_back(
    open_installation: OpenInstallation, typed_by: TypedBy
) -> None:
    async with open_installation() as installation:
        typed, agent = typed_by(installation), await installation.register_piped("p")
        for name in ("cart", "shop"):
            draft = Application(name=name, piped_id=agent.id, platform_provider="cloud")
            last = await installation.add_application(name, draft)
        await installation.cases.applications.disable(last, by=installation.admin)

        backup, mapping = (
            installation.directory / "backup.json",
            installation.directory / "mapping.json",
        )
        saved = await typed.upstream(f"transfer backup --output-file {backup}")
        assert saved.code == 0, saved.err
        kept = json.loads(backup.read_text())
        assert (len(kept["pipeds"]), len(kept["applications"])) == (1, 2)
        assert "$2" not in backup.read_text(), "no hash of a key leaves the control plane"

        line = f"transfer restore piped --input-file {backup} --output-file {mapping}"
        restored = await typed.upstream(line)
        assert restored.code == 0, restored.err
        new = json.loads(mapping.read_text())["piped_mappings"][0]["new_piped_id"]
        # The new piped has started once and reported its repositories.
        await installation.add_application("till", Application(name="till", piped_id=new))
        restored = await typed.upstream(
            f"transfer restore application --input-file {backup} --piped-id-mapping-file {mapping}"
        )
        assert restored.code == 0, restored.err
        moved = json.loads((await typed.same(f"application list --piped-id {new}")).out)
        assert sorted(a["name"] for a in moved["applications"]) == ["cart", "till"]
        line = f"application list --piped-id {new} --disabled"
        moved = json.loads((await typed.same(line)).out)
        assert [a["name"] for a in moved["applications"]] == ["shop"]
