# SPDX-License-Identifier: Apache-2.0
"""Pipeds: registration, keys, reports, connection status, and encryption of secrets."""

import asyncio
import base64
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from pipecd.controlplane.auth.subject import ApiKeyCaller, PipedCaller, User
from pipecd.controlplane.bus.memory import MemoryBus
from pipecd.controlplane.bus.signal import Signal, Topic
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases import UseCases, piped_connections
from pipecd.controlplane.usecases.access import ForeignProject
from pipecd.controlplane.usecases.commands import CommandResult
from pipecd.controlplane.usecases.piped_connections import STATS_KEY, PipedConnections
from pipecd.controlplane.usecases.pipeds import RegisteredPiped
from pipecd.model.clock import Now
from pipecd.model.command import CommandStatus
from pipecd.model.errors import Conflict, Denied, NotFound, UserMistake
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.piped_pb2 import Piped
from pipecd.proto.service.piped_pb2 import ReportPipedMetaRequest
from pipecd.proto.service.pluginfailures_pb2 import PluginFailure
from pipecd.secrets import hybrid
from pipecd.secrets.binding import Binding


async def test_the_key_of_a_piped_is_returned_only_once(
    cases: UseCases, registered: RegisteredPiped, admin: User
) -> None:
    piped = await cases.pipeds.get(registered.id, by=admin)
    assert len(registered.key) == 50
    assert [(key.hash, key.creator) for key in piped.keys] == [("redacted", admin.name)]
    (listed,) = await cases.pipeds.list(by=admin)
    assert listed.keys[0].hash == "redacted"


async def test_registering_needs_permission_and_a_name(
    cases: UseCases, viewer: User, admin: User
) -> None:
    with pytest.raises(Denied):
        await cases.pipeds.register("x", "", by=viewer)
    with pytest.raises(UserMistake):
        await cases.pipeds.register("", "", by=admin)


@pytest.mark.parametrize(
    "what",
    [
        pytest.param(lambda c, id, by: c.get(id, by=by), id="read"),
        pytest.param(lambda c, id, by: c.update(id, "n", "d", by=by), id="updated"),
        pytest.param(lambda c, id, by: c.enable(id, by=by), id="enabled"),
        pytest.param(lambda c, id, by: c.disable(id, by=by), id="disabled"),
        pytest.param(lambda c, id, by: c.add_key(id, by=by), id="given a key"),
        pytest.param(lambda c, id, by: c.delete_old_keys(id, by=by), id="deprived of a key"),
        pytest.param(lambda c, id, by: c.set_desired_version("v1", [id], by=by), id="upgraded"),
        pytest.param(lambda c, id, by: c.restart(id, by=by), id="restarted"),
    ],
)
async def test_a_piped_of_another_project_cannot_be(
    cases: UseCases,
    registered: RegisteredPiped,
    stranger: User,
    what: Callable[..., Awaitable[object]],
) -> None:
    with pytest.raises(ForeignProject, match="Requested piped does not belong to your project"):
        await what(cases.pipeds, registered.id, stranger)


async def test_a_report_at_startup_replaces_the_previous_one(
    cases: UseCases, piped: PipedCaller, admin: User
) -> None:
    meta = ReportPipedMetaRequest(
        version="v2",
        cloud_providers=[Piped.CloudProvider(name="old", type="KUBERNETES")],
        platform_providers=[Piped.PlatformProvider(name="new", type="ECS")],
        plugins=[Piped.Plugin(name="kubernetes", deploy_targets=["dev"])],
        secret_encryption=Piped.SecretEncryption(type="NONE"),
    )
    await cases.pipeds.report_meta(meta, by=piped)
    stored = await cases.pipeds.get(piped.piped, by=admin)
    assert [p.name for p in stored.platform_providers] == ["old", "new"]
    assert (len(stored.cloud_providers), len(stored.repositories)) == (0, 0)
    assert (stored.version, stored.plugins[0].name, stored.started_at > 0) == (
        "v2",
        "kubernetes",
        True,
    )


async def test_a_piped_is_online_while_it_reports(
    cases: UseCases,
    stores: Stores,
    piped: PipedCaller,
    admin: User,
    advance: Callable[[float], None],
) -> None:
    async def status() -> Piped.ConnectionStatus.ValueType:
        (listed,) = await cases.pipeds.list(by=admin)
        assert listed.status == (await cases.pipeds.get(piped.piped, by=admin)).status
        return listed.status

    assert await status() == Piped.OFFLINE
    await cases.pipeds.report_stat(b"metric 1", by=piped)
    advance(120)
    assert await status() == Piped.ONLINE
    advance(1)
    assert await status() == Piped.OFFLINE
    await stores.cache.put_field(STATS_KEY, piped.piped, b"not json")
    assert await status() == Piped.UNKNOWN


async def test_a_signal_is_sent_only_when_a_piped_comes_online(
    cases: UseCases, bus: MemoryBus, piped: PipedCaller
) -> None:
    async with bus.subscribe() as signals:
        for _ in range(3):
            await cases.pipeds.report_stat(b"", by=piped)
        await cases.application_reports.report_unregistered([], by=piped)
        received = [(await anext(signals)).topic, (await anext(signals)).topic]
    assert received == [Topic.PIPED, Topic.APPLICATION]


async def test_a_signal_is_sent_once_when_a_piped_goes_offline(
    cases: UseCases, bus: MemoryBus, piped: PipedCaller, advance: Callable[[float], None]
) -> None:
    detector = cases.pipeds.offline_detector
    await cases.pipeds.report_stat(b"", by=piped)
    async with bus.subscribe() as signals:
        advance(100)
        await detector.check()
        await cases.pipeds.report_stat(b"", by=piped)
        advance(100)
        await detector.check()
        advance(30)
        await detector.check()
        await detector.check()
        await cases.application_reports.report_unregistered([], by=piped)
        received = [await anext(signals), await anext(signals)]
    assert received[0] == Signal(Topic.PIPED, piped.piped, piped.project)
    assert received[1].topic is Topic.APPLICATION


async def test_a_piped_that_reports_to_another_replica_is_not_offline(
    *,
    cases: UseCases,
    stores: Stores,
    bus: MemoryBus,
    piped: PipedCaller,
    now: Now,
    advance: Callable[[float], None],
) -> None:
    await cases.pipeds.report_stat(b"", by=piped)
    advance(100)
    await PipedConnections(stores.cache, now).report(piped.piped, b"")
    advance(30)
    async with bus.subscribe() as signals:
        await cases.pipeds.offline_detector.check()
        await cases.application_reports.report_unregistered([], by=piped)
        assert (await anext(signals)).topic is Topic.APPLICATION


async def test_a_new_replica_detects_pipeds_of_another_replica_that_go_offline(
    *,
    cases: UseCases,
    stores: Stores,
    bus: MemoryBus,
    piped: PipedCaller,
    now: Now,
    advance: Callable[[float], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(piped_connections, "CHECK_INTERVAL_SECONDS", 0.01)
    await PipedConnections(stores.cache, now).report(piped.piped, b"")
    async with bus.subscribe() as signals, asyncio.timeout(5):
        running = asyncio.ensure_future(cases.pipeds.offline_detector.run())
        await asyncio.sleep(0.02)
        advance(130)
        assert await anext(signals) == Signal(Topic.PIPED, piped.piped, piped.project)
        running.cancel()
        await asyncio.wait({running})


async def test_a_piped_has_at_most_two_keys_and_keeps_the_newest(
    cases: UseCases,
    stores: Stores,
    registered: RegisteredPiped,
    admin: User,
    advance: Callable[[float], None],
) -> None:
    (first,) = (await stores.pipeds.get(registered.id)).keys
    await cases.pipeds.delete_old_keys(registered.id, by=admin)
    advance(1)
    await cases.pipeds.add_key(registered.id, by=admin)
    newest, oldest = (await stores.pipeds.get(registered.id)).keys
    assert (oldest, newest.created_at) == (first, first.created_at + 1)
    with pytest.raises(Conflict):
        await cases.pipeds.add_key(registered.id, by=admin)
    await cases.pipeds.delete_old_keys(registered.id, by=admin)
    assert list((await stores.pipeds.get(registered.id)).keys) == [newest]


async def test_the_launcher_gets_the_desired_version(
    cases: UseCases, piped: PipedCaller, admin: User
) -> None:
    assert await cases.pipeds.desired_version(by=piped) == ""
    await cases.pipeds.set_desired_version("v0.51.0", [piped.piped], by=admin)
    assert await cases.pipeds.desired_version(by=piped) == "v0.51.0"


async def test_a_secret_is_encrypted_for_the_piped(
    cases: UseCases, piped: PipedCaller, program: ApiKeyCaller, spec_dir: Path
) -> None:
    public = (spec_dir / "vectors" / "secret_public.pem").read_text()
    private = (spec_dir / "vectors" / "secret_private.pem").read_bytes()
    meta = ReportPipedMetaRequest(
        secret_encryption=Piped.SecretEncryption(type="KEY_PAIR", public_key=public)
    )
    await cases.pipeds.report_meta(meta, by=piped)
    encrypted = await cases.encryption.encrypt(piped.piped, "höchst geheim", by=program)
    assert hybrid.decrypt(private, encrypted) == "höchst geheim"
    encoded = await cases.encryption.encrypt(
        piped.piped, "höchst geheim", base64_encoding=True, by=program
    )
    assert base64.b64decode(hybrid.decrypt(private, encoded)).decode() == "höchst geheim"


@pytest.mark.parametrize(
    ("type_", "key", "error"),
    [
        pytest.param("", "", Conflict, id="the piped has reported no key"),
        pytest.param("NONE", "", Conflict, id="the piped has no secret management"),
        pytest.param("GCP_KMS", "x", Conflict, id="the piped uses an unsupported type"),
        pytest.param("KEY_PAIR", "not a key", UserMistake, id="the public key is invalid"),
    ],
)
async def test_a_secret_cannot_be_encrypted_if(
    cases: UseCases,
    piped: PipedCaller,
    program: ApiKeyCaller,
    type_: str,
    key: str,
    error: type[Exception],
) -> None:
    meta = ReportPipedMetaRequest()
    if type_:
        meta.secret_encryption.type, meta.secret_encryption.public_key = type_, key
    await cases.pipeds.report_meta(meta, by=piped)
    with pytest.raises(error):
        await cases.encryption.encrypt(piped.piped, "secret", by=program)


async def test_a_secret_is_bound_to_the_application_it_is_encrypted_for(
    cases: UseCases,
    piped: PipedCaller,
    admin: User,
    application: Application,
    spec_dir: Path,
) -> None:
    public = (spec_dir / "vectors" / "secret_public.pem").read_text()
    private = (spec_dir / "vectors" / "secret_private.pem").read_bytes()
    meta = ReportPipedMetaRequest(
        secret_encryption=Piped.SecretEncryption(type="KEY_PAIR", public_key=public),
        config="secretManagement: {forms: [bound, unbound]}",
    )
    await cases.pipeds.report_meta(meta, by=piped)
    encrypted = await cases.encryption.encrypt_for_application(application.id, "geheim", by=admin)
    binding = Binding.of_application(application)
    assert encrypted.binding == binding
    assert hybrid.decrypt(private, encrypted.text, binding=binding) == "geheim"
    with pytest.raises(UserMistake, match="the secret is empty"):
        await cases.encryption.encrypt_for_application(application.id, "", by=admin)


async def test_encryption_for_an_application_needs_the_permission_and_the_own_project(
    cases: UseCases, application: Application, stranger: User, viewer: User
) -> None:
    encrypt = cases.encryption.encrypt_for_application
    with pytest.raises(ForeignProject):
        await encrypt(application.id, "secret", by=stranger)
    with pytest.raises(Denied, match="Permission Denied"):
        await encrypt(application.id, "secret", by=viewer)


async def test_encryption_needs_the_permission_and_the_own_project(
    cases: UseCases, piped: PipedCaller, stranger: User, viewer: User
) -> None:
    with pytest.raises(ForeignProject):
        await cases.encryption.encrypt(piped.piped, "secret", by=stranger)
    with pytest.raises(Denied, match="Permission Denied"):
        await cases.encryption.encrypt(piped.piped, "secret", by=viewer)


async def test_an_unknown_piped_is_not_found(cases: UseCases, admin: User) -> None:
    with pytest.raises(NotFound, match=r"^Piped is not found$"):
        await cases.pipeds.get("nope", by=admin)


async def test_failing_plugins_are_counted_and_read_in_the_own_project_only(
    cases: UseCases, piped: PipedCaller, admin: User, stranger: User
) -> None:
    failure = PluginFailure(plugin="vm" * 200, target="far", reason="r" * 9000, since=7)
    await cases.pipeds.report_plugin_failures([failure], by=piped)
    (stored,) = await cases.pipeds.plugin_failures(piped.piped, by=admin)
    assert (len(stored.plugin), stored.target, len(stored.reason)) == (255, "far", 4096)
    with pytest.raises(ForeignProject):
        await cases.pipeds.plugin_failures(piped.piped, by=stranger)
    activity = await cases.pipeds.activity(await cases.pipeds.list(by=admin), by=admin)
    assert activity[piped.piped].failing_plugins == 1


async def test_activity_returns_the_last_report_and_the_pending_restart(
    *,
    cases: UseCases,
    piped: PipedCaller,
    other_piped: PipedCaller,
    admin: User,
    stranger: User,
    bus: MemoryBus,
    advance: Callable[[float], None],
    now: Now,
) -> None:
    pipeds = await cases.pipeds.list(by=admin)
    unseen = await cases.pipeds.activity(pipeds, by=admin)
    assert unseen == {piped.piped: (0, "", 0), other_piped.piped: (0, "", 0)}
    await cases.pipeds.report_stat(b"up 1", by=piped)
    received = int(now().timestamp())
    advance(300)
    async with bus.subscribe(project=admin.project) as signals:
        command = await cases.pipeds.restart(piped.piped, by=admin)
        topics = {(await anext(signals)).topic, (await anext(signals)).topic}
    assert topics == {Topic.COMMAND, Topic.PIPED}
    activity = await cases.pipeds.activity(pipeds, by=admin)
    assert activity == {piped.piped: (received, command, 0), other_piped.piped: (0, "", 0)}
    done = CommandResult(command, CommandStatus.SUCCEEDED, received)
    await cases.commands.report_handled(done, by=piped)
    assert (await cases.pipeds.activity(pipeds, by=admin))[piped.piped] == (received, "", 0)
    with pytest.raises(ForeignProject):
        await cases.pipeds.activity(pipeds, by=stranger)
