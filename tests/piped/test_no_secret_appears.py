# SPDX-License-Identifier: Apache-2.0
"""Nothing that a whole piped and a control plane write or show has a secret in it.

A plugin that tells everything it knows, and a script that does, deploy an application with planted
secrets; the deployments succeed, fail, and cannot be planned, there is drift and a preview. Then
everything on disk, in the logs, on the pages and at the receivers is searched.
"""

import asyncio
import base64
import gzip
import json
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import httpx2
import pytest

from pipecd.controlplane.datastore.deployments import DeploymentFilter
from pipecd.model.deployment import DeploymentStatus
from pipecd.proto.model.application_pb2 import ApplicationSyncStatus
from pipecd.proto.model.deployment_pb2 import Deployment, DeployTargets
from pipecd.proto.service.api_pb2 import RequestPlanPreviewRequest
from pipecd.secrets import hybrid
from servers.control_plane import RunPiped, StartControlPlane
from servers.origin import Origin
from servers.polling import eventually
from servers.receivers import Mailbox, Receivers, notifications_config

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

TOKEN = "planted0token0K7sQ2vXw9ZbN4mLpR8tYcUe"
PASSWORD = 'planted pass\'word&<42>/"quoted"+é'
KEY = "\n".join(
    ["-----BEGIN PLANTED KEY-----", *(f"{n}PlantedLine{n * 7919}Of/The+Key" for n in range(1, 5))]
)
OLD_TOKEN = "older1token1J3hG6fD9sA2qW5eR8tY1uI4o"
PLANTED = {"token": TOKEN, "password": PASSWORD, "key": KEY}

LEAKY = f'''#!{sys.executable}
"""A plugin that keeps nothing to itself."""
import base64, json, sys
from urllib.parse import quote
from pipecd.sdk import *

def all_of(source):
    names = ("token", "password", "key")
    return [(source.application_directory / name).read_text() for name in names]

def told(source):
    texts = all_of(source)
    encoded = [base64.b64encode(t.encode()).decode() for t in texts]
    basic = base64.b64encode(f"user:{{texts[0]}}".encode()).decode()
    forms = [*texts, *encoded, *map(json.dumps, texts), *map(quote, texts), basic]
    print("stdout:", *forms, flush=True)
    print("stderr:", *forms, file=sys.stderr, flush=True)
    return " | ".join(forms)

class Leaky(DeploymentPlugin, LiveStatePlugin, PreviewPlugin):
    stages = (Stage("LEAKY_SYNC"), Stage("LEAKY_ROLLBACK"))

    async def versions(self, plan):
        token = all_of(plan.target)[0]
        return [Version(token, f"named {{token}}", f"https://u:{{token}}@example.com/")]

    async def strategy(self, plan):
        return Strategy(SyncStrategy.PIPELINE, f"changed: {{told(plan.target)}}")

    async def quick_sync(self, *, rollback):
        undo = PlannedStage("LEAKY_ROLLBACK", is_rollback=True)
        return [PlannedStage("LEAKY_SYNC"), *([undo] if rollback else [])]

    async def plan_stage(self, requested, *, rollback):
        undo = PlannedStage("LEAKY_ROLLBACK", requested.index, is_rollback=True)
        return [PlannedStage(requested.name, requested.index), *([undo] if rollback else [])]

    async def execute(self, stage):
        text = told(stage.target)
        stage.log.info(text)
        await stage.metadata.put({{DISPLAY_KEY: text}})
        stage.log.write(text[:50])
        stage.log.flush()
        stage.log.write(text[50:] + "\\n")
        if (stage.target.application_directory / "fail").exists() and not stage.is_rollback:
            raise UserMistake(f"cannot: {{text}}", hint=text)
        return StageResult.succeeded(text)

    async def live_state(self, look):
        text = told(look.source)
        resource = Resource(
            id="r", name="r", health=Health.UNHEALTHY, health_text=text, metadata={{"m": text}}
        )
        return LiveState([resource], SyncState(SyncStatus.OUT_OF_SYNC, text, text))

    async def preview(self, change):
        text = told(change.target)
        return [Preview("here", text, text)]

if __name__ == "__main__":
    serve(Leaky)
'''
SCRIPT = """\
set -x
export TOKEN="$(cat token)"
env
cat token password key
base64 key
base64 -w 7 token
printf '%s\\n%s\\n' "$(head -c 20 token)" "$(tail -c +21 token)"
for letters in "$(head -c 9 token)" "$(tail -c +10 token)"; do echo "$letters"; sleep 0.7; done
printf '{"authorization": "Basic %s"}\\n' "$(printf 'user:%s' "$TOKEN" | base64 -w0)"
cat token >&2
"""


def application(public: bytes, script: str, secrets: dict[str, str]) -> str:
    sealed = {name: hybrid.encrypt(public, value) for name, value in secrets.items()}
    stages = [{"name": "LEAKY_SYNC"}, {"name": "SCRIPT_RUN", "with": {"run": script}}]
    spec = {
        "name": "cart",
        "plugins": {"leaky": {}},
        "encryption": {"encryptedSecrets": sealed, "decryptionTargets": list(secrets)},
        "pipeline": {"stages": stages},
    }
    return json.dumps({"apiVersion": "pipecd.dev/v1beta1", "kind": "Application", "spec": spec})


def files(public: bytes, script: str = SCRIPT, token: str = TOKEN) -> dict[str, str]:
    templates = {name: f"{{{{ .encryptedSecrets.{name} }}}}" for name in PLANTED}
    written = {f"cart/{name}": text for name, text in templates.items()}
    secrets = PLANTED | {"token": token}
    return {"cart/app.pipecd.yaml": application(public, script, secrets), **written}


@dataclass
class Scene:
    """A control plane and a piped with the leaky plugin."""

    plane: Any
    piped: Any

    async def deployments(self) -> tuple[Deployment, ...]:
        listed = await self.plane.cases.deployments.list(
            DeploymentFilter(project="demo"), by=self.plane.admin
        )
        return tuple(listed.items)

    async def ended(self, commit: str) -> Deployment:
        async def found() -> Deployment | None:
            for each in await self.deployments():
                done = DeploymentStatus(each.status).is_completed
                if each.trigger.commit.hash == commit and done:
                    return each
            return None

        return await eventually(found, 40)

    async def application(self) -> Any:
        (deployment, *_) = await self.deployments()
        applications = self.plane.cases.applications
        return await applications.get(deployment.application_id, by=self.plane.admin)

    async def drifted(self) -> bool:
        state = (await self.application()).sync_state
        return state.status == ApplicationSyncStatus.OUT_OF_SYNC

    async def preview(self, remote: str, commit: str) -> str:
        previews, by = self.plane.cases.plan_previews, self.plane.admin
        wanted = RequestPlanPreviewRequest(
            repo_remote_url=remote,
            base_branch="main",
            head_branch="feature",
            head_commit=commit,
        )
        (command,) = await previews.request(wanted, by=by)

        async def handled() -> bool:
            return bool((await self.plane.cases.commands.get(command, by=by)).status)

        await eventually(handled, 40)
        return str(await previews.results([command], by=by))

    async def pages(self) -> str:
        """What a person sees of it all."""
        cases = self.plane.cases
        site = f"http://{self.plane.address}"
        cookies = {"token": cases.sessions.issue(self.plane.admin)}
        paths = ["/applications", f"/applications/{(await self.application()).id}", "/deployments"]
        for each in await self.deployments():
            one = f"/deployments/{each.id}"
            paths += [one, *(f"{one}/stages/{stage.id}/log.txt" for stage in each.stages)]
        async with httpx2.AsyncClient(base_url=site, cookies=cookies) as client:
            answers = [await client.get(path) for path in paths]
        assert {answer.status_code for answer in answers} == {200}
        return "".join(answer.text for answer in answers)


def traces(secret: str) -> Iterator[str]:
    """What gives a secret away."""
    encoded = base64.b64encode(secret.encode()).decode()
    yield from (secret, encoded.rstrip("=")[:-1], encoded.translate(str.maketrans("+/", "-_")))
    yield from (json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1])
    yield from (quote(secret), quote_plus(secret))
    yield base64.b64encode(f"user:{secret}".encode()).decode()[8:-4]


def everything_in(directory: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            content = path.read_bytes()
            is_packed = content[:2] == b"\x1f\x8b"
            yield (
                str(path.relative_to(directory)),
                gzip.decompress(content) if is_packed else content,
            )


async def live_through(scene: Scene, origin: Origin, public: bytes) -> str:
    """Everything that can happen to an application; what people were shown of it."""
    first = origin.commit(files(public, token=OLD_TOKEN), "the first")
    targets = {"leaky": DeployTargets(deploy_targets=["here"])}
    await scene.piped.add_application("cart", deploy_targets_by_plugin=targets)
    done = await scene.ended(first)
    assert DeploymentStatus(done.status) is DeploymentStatus.SUCCESS, done.status_reason
    script = files(public, script=f"{SCRIPT}\nexit 1\n")
    failed = await scene.ended(origin.commit(script, "a script that fails"))
    assert DeploymentStatus(failed.status) is DeploymentStatus.FAILURE
    stage = await scene.ended(origin.commit({"cart/fail": ""}, "a stage that fails"))
    assert "cannot: ******" in stage.status_reason
    await eventually(scene.drifted, 20)
    origin.git("checkout", "-q", "-b", "feature")
    preview = await scene.preview(origin.remote, origin.commit({"cart/x": "1"}))
    assert "******" in preview
    origin.git("checkout", "-q", "main")
    template = {"cart/token": "{{ fail .encryptedSecrets.token }}"}
    unplanned = await scene.ended(origin.commit(template, "a template that fails"))
    assert "failed to render target file token" in unplanned.status_reason
    strange = application(public, SCRIPT, PLANTED).replace('"token": "A', '"token": "B')
    unreadable = await scene.ended(origin.commit({"cart/app.pipecd.yaml": strange}, "strange"))
    assert "failed to decrypt token secret" in unreadable.status_reason
    return preview + await scene.pages() + str(await scene.deployments())


@dataclass
class Outside:
    """What gets to know of it beside the control plane."""

    receivers: Receivers
    mailbox: Mailbox
    printed: pytest.CaptureFixture[str]

    def heard(self) -> dict[str, bytes]:
        printed = self.printed.readouterr()
        assert "stdout: ******" in printed.err, "the plugin was heard"
        assert self.receivers.deliveries
        assert self.mailbox.mails
        return {
            "log": f"{printed.out}{printed.err}".encode(),
            "notifications": b"".join(each.body for each in self.receivers.deliveries),
            "mails": b"".join(mail.content.as_bytes() for mail in self.mailbox.mails),
        }


@pytest.fixture
def outside(receivers: Receivers, mailbox: Mailbox, capfd: pytest.CaptureFixture[str]) -> Outside:
    return Outside(receivers, mailbox, capfd)


@pytest.fixture
def configuration(outside: Outside, spec_dir: Path, tmp_path: Path) -> str:
    program = tmp_path / "leaky"
    program.write_text(LEAKY)
    program.chmod(0o755)
    private, public = (spec_dir / "vectors" / f"secret_{h}.pem" for h in ("private", "public"))
    return f"""\
{notifications_config(outside.receivers, outside.mailbox)}
secretManagement:
  type: KEY_PAIR
  config: {{privateKeyFile: {private}, publicKeyFile: {public}}}
plugins: [{{name: leaky, url: "file://{program}", deployTargets: [{{name: here}}]}}]
"""


@pytest.fixture
def start(start_plane: StartControlPlane, whole_piped: RunPiped, tmp_path: Path) -> Any:
    @asynccontextmanager
    async def started(remote: str, configuration: str) -> AsyncGenerator[Scene]:
        given = {"more": configuration, "plugins_dir": tmp_path / "plugins"}
        async with start_plane() as plane, whole_piped(plane, remote, **given) as piped:
            yield Scene(plane, piped)

    return started


async def test_no_secret_appears_anywhere(
    start: Any, origin: Origin, configuration: str, outside: Outside, spec_dir: Path, tmp_path: Path
) -> None:
    public = (spec_dir / "vectors" / "secret_public.pem").read_bytes()
    origin.commit({"README": ""})
    async with asyncio.timeout(170), start(origin.remote, configuration) as scene:
        shown = await live_through(scene, origin, public)
    found = dict(everything_in(tmp_path))
    assert not [name for name in found if "/sources/" in name], "no working copy is left"
    logs = b"".join(content for name, content in found.items() if name.startswith("files/"))
    assert logs.count(b"******") > 20
    found |= {"shown": shown.encode(), **outside.heard()}
    lines = [line for line in KEY.splitlines() if line]
    for secret in (TOKEN, OLD_TOKEN, PASSWORD, KEY, *lines):
        for trace in traces(secret):
            where = [name for name, content in found.items() if trace.encode() in content]
            assert where == [], trace


async def test_what_a_killed_piped_left_behind_is_removed(
    start_plane: StartControlPlane,
    whole_piped: RunPiped,
    origin: Origin,
    tmp_path: Path,
) -> None:
    origin.commit({"README": ""})
    places = ("deployments/d1/sources/s1/target", "livestate/a1", "plan-previews/c1/a1/target")
    left = [tmp_path / "workspace of dev" / place / "secret" for place in places]
    for file in left:
        file.parent.mkdir(parents=True)
        file.write_text(TOKEN)
    async with start_plane() as plane, whole_piped(plane, origin.remote):
        await eventually(lambda: not any(file.exists() for file in left))
