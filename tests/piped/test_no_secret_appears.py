# SPDX-License-Identifier: Apache-2.0
"""No secret appears in anything that a piped and a control plane write or show.

A plugin and a script that print all secrets deploy an application; its deployments succeed, fail and
cannot be planned, there is drift and a plan preview. Then every file, log, console page and
notification is searched.
"""

import asyncio
import base64
import gzip
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import quote, quote_plus

import httpx2
import pytest

from pipecd.model.application import SyncStatus
from pipecd.model.deployment import DeploymentStatus
from pipecd.proto.model.deployment_pb2 import Deployment, DeployTargets
from pipecd.proto.service.api_pb2 import RequestPlanPreviewRequest
from pipecd.secrets import hybrid
from servers.control_plane import LocalControlPlane, LocalPiped, RunPiped, StartControlPlane
from servers.environment import matching_sync_state
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
"""A plugin that prints every secret."""
import base64, json, sys
from urllib.parse import quote
from pipecd.sdk import *

def all_of(source):
    names = ("token", "password", "key")
    return [(source.application_directory / name).read_text() for name in names]

def leaked(source):
    texts = all_of(source)
    encoded = [base64.b64encode(t.encode()).decode() for t in texts]
    basic = base64.b64encode(f"user:{{texts[0]}}".encode()).decode()
    in_hex = [t.encode().hex() for t in texts]
    in_hex += [t.upper() for t in in_hex]
    forms = [*texts, *encoded, *map(json.dumps, texts), *map(quote, texts), basic, *in_hex]
    print("stdout:", *forms, flush=True)
    print("stderr:", *forms, file=sys.stderr, flush=True)
    return " | ".join(forms)

class Leaky(DeploymentPlugin, LiveStatePlugin, PreviewPlugin):
    stages = (Stage("LEAKY_SYNC"), Stage("LEAKY_ROLLBACK"))

    async def versions(self, plan):
        token = all_of(plan.target)[0]
        return [Version(token, f"named {{token}}", f"https://u:{{token}}@example.com/")]

    async def strategy(self, plan):
        return Strategy(SyncStrategy.PIPELINE, f"changed: {{leaked(plan.target)}}")

    async def quick_sync(self, *, rollback):
        undo = PlannedStage("LEAKY_ROLLBACK", is_rollback=True)
        return [PlannedStage("LEAKY_SYNC"), *([undo] if rollback else [])]

    async def plan_stage(self, requested, *, rollback):
        undo = PlannedStage("LEAKY_ROLLBACK", requested.index, is_rollback=True)
        return [PlannedStage(requested.name, requested.index), *([undo] if rollback else [])]

    async def execute(self, stage):
        text = leaked(stage.target)
        stage.log.info(text)
        await stage.metadata.put({{DISPLAY_KEY: text}})
        stage.log.write(text[:50])
        stage.log.flush()
        stage.log.write(text[50:] + "\\n")
        if (stage.target.application_directory / "fail").exists() and not stage.is_rollback:
            raise UserMistake(f"cannot: {{text}}", hint=text)
        return StageResult.succeeded(text)

    async def live_state(self, look):
        text = leaked(look.source)
        resource = Resource(
            id="r", name="r", health=Health.UNHEALTHY, health_text=text, metadata={{"m": text}}
        )
        return LiveState([resource], SyncState(SyncStatus.OUT_OF_SYNC, text, text))

    async def preview(self, change):
        text = leaked(change.target)
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
od -An -v -tx1 token | tr -d ' \\n'; echo
od -An -v -tx1 key | tr -d ' '
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


async def preview_result(plane: LocalControlPlane, remote: str, commit: str) -> str:
    """The result of a plan preview, as pipectl receives it."""
    previews = plane.cases.plan_previews
    request = RequestPlanPreviewRequest(
        repo_remote_url=remote,
        base_branch="main",
        head_branch="feature",
        head_commit=commit,
    )
    (command,) = await previews.request(request, by=plane.admin)
    await plane.wait_for_command(command, within=40)
    return str(await previews.results([command], by=plane.admin))


async def console_pages(plane: LocalControlPlane) -> str:
    """The text of every console page about the application and its deployments."""
    cookies = {"token": plane.cases.sessions.issue(plane.admin)}
    cart = await plane.application_named("cart")
    paths = ["/applications", f"/applications/{cart.id}", "/deployments"]
    for deployment in await plane.deployments():
        page = f"/deployments/{deployment.id}"
        paths += [page, *(f"{page}/stages/{stage.id}/log.txt" for stage in deployment.stages)]
    async with httpx2.AsyncClient(base_url=f"http://{plane.address}", cookies=cookies) as client:
        responses = [await client.get(path) for path in paths]
    assert {response.status_code for response in responses} == {200}
    return "".join(response.text for response in responses)


def encodings(secret: str) -> Iterator[str]:
    """The encodings in which a secret may leak."""
    encoded = base64.b64encode(secret.encode()).decode()
    yield from (secret, encoded.rstrip("=")[:-1], encoded.translate(str.maketrans("+/", "-_")))
    yield from (json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1])
    yield from (quote(secret), quote_plus(secret))
    yield from (secret.encode().hex(), secret.encode().hex().upper())
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


async def run_everything(
    plane: LocalControlPlane, piped: LocalPiped, origin: Origin, public: bytes
) -> str:
    """Runs everything that can happen to an application; returns what users are shown of it."""

    async def completed(files: dict[str, str], message: str) -> Deployment:
        return await plane.wait_for_completed(origin.commit(files, message), within=40)

    targets = {"leaky": DeployTargets(deploy_targets=["here"])}
    first = origin.commit(files(public, token=OLD_TOKEN), "the first")
    cart = await piped.add_application("cart", deploy_targets_by_plugin=targets)
    deployed = await plane.wait_for_completed(first, within=40)
    assert DeploymentStatus(deployed.status) is DeploymentStatus.SUCCESS, deployed.status_reason
    failed = await completed(files(public, script=f"{SCRIPT}\nexit 1\n"), "a script that fails")
    assert DeploymentStatus(failed.status) is DeploymentStatus.FAILURE
    stage = await completed({"cart/fail": ""}, "a stage that fails")
    assert "cannot: ******" in stage.status_reason
    await eventually(partial(matching_sync_state, plane, cart, SyncStatus.OUT_OF_SYNC), 20)
    origin.git("checkout", "-q", "-b", "feature")
    # No masking knows what a template makes of a secret, so the branch must not get any.
    branch = {"cart/token": "{{ upper .encryptedSecrets.token }}"}
    preview = await preview_result(plane, origin.remote, origin.commit(branch))
    assert "******" in preview
    origin.git("checkout", "-q", "main")
    template = {"cart/token": "{{ fail .encryptedSecrets.token }}"}
    unplanned = await completed(template, "a template that fails")
    assert "failed to render target file token" in unplanned.status_reason
    damaged = application(public, SCRIPT, PLANTED).replace('"token": "A', '"token": "B')
    unreadable = await completed({"cart/app.pipecd.yaml": damaged}, "a damaged secret")
    assert "failed to decrypt token secret" in unreadable.status_reason
    return preview + await console_pages(plane) + str(await plane.deployments())


@dataclass
class Outputs:
    """Everything that piped writes apart from its requests to the control plane."""

    receivers: Receivers
    mailbox: Mailbox
    captured: pytest.CaptureFixture[str]

    def contents(self) -> dict[str, bytes]:
        printed = self.captured.readouterr()
        assert "stdout: ******" in printed.err, "the output of the plugin is logged"
        assert self.receivers.deliveries
        assert self.mailbox.mails
        return {
            "log": f"{printed.out}{printed.err}".encode(),
            "notifications": b"".join(each.body for each in self.receivers.deliveries),
            "mails": b"".join(mail.content.as_bytes() for mail in self.mailbox.mails),
        }


@pytest.fixture
def outputs(receivers: Receivers, mailbox: Mailbox, capfd: pytest.CaptureFixture[str]) -> Outputs:
    return Outputs(receivers, mailbox, capfd)


@pytest.fixture
def configuration(outputs: Outputs, spec_dir: Path, tmp_path: Path) -> str:
    program = tmp_path / "leaky"
    program.write_text(LEAKY)
    program.chmod(0o755)
    private, public = (spec_dir / "vectors" / f"secret_{h}.pem" for h in ("private", "public"))
    return f"""\
{notifications_config(outputs.receivers, outputs.mailbox)}
secretManagement:
  type: KEY_PAIR
  config: {{privateKeyFile: {private}, publicKeyFile: {public}}}
plugins: [{{name: leaky, url: "file://{program}", deployTargets: [{{name: here}}]}}]
"""


async def test_no_secret_appears_anywhere(
    start_plane: StartControlPlane,
    whole_piped: RunPiped,
    origin: Origin,
    configuration: str,
    outputs: Outputs,
    spec_dir: Path,
    tmp_path: Path,
) -> None:
    public = (spec_dir / "vectors" / "secret_public.pem").read_bytes()
    origin.commit({"README": ""})
    settings = {"more": configuration, "plugins_dir": tmp_path / "plugins"}
    async with (
        asyncio.timeout(170),
        start_plane() as plane,
        whole_piped(plane, origin.remote, **settings) as piped,
    ):
        shown = await run_everything(plane, piped, origin, public)
    contents = dict(everything_in(tmp_path))
    assert not [name for name in contents if "/sources/" in name], "no working copy is left"
    logs = b"".join(content for name, content in contents.items() if name.startswith("files/"))
    assert logs.count(b"******") > 20
    contents |= {"shown": shown.encode(), **outputs.contents()}
    lines = [line for line in KEY.splitlines() if line]
    for secret in (TOKEN, TOKEN.upper(), OLD_TOKEN, PASSWORD, KEY, *lines):
        for encoded in encodings(secret):
            where = [name for name, content in contents.items() if encoded.encode() in content]
            assert where == [], encoded


async def test_working_copies_of_a_killed_piped_are_removed(
    start_plane: StartControlPlane,
    whole_piped: RunPiped,
    origin: Origin,
    tmp_path: Path,
) -> None:
    origin.commit({"README": ""})
    paths = ("deployments/d1/sources/s1/target", "livestate/a1", "plan-previews/c1/a1/target")
    left = [tmp_path / "workspace of dev" / path / "secret" for path in paths]
    for file in left:
        file.parent.mkdir(parents=True)
        file.write_text(TOKEN)
    async with start_plane() as plane, whole_piped(plane, origin.remote):
        await eventually(lambda: not any(file.exists() for file in left))
