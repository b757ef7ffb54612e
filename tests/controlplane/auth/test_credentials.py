# SPDX-License-Identifier: Apache-2.0
"""Authentication of pipeds and API keys: caching, throttling and revocation."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from pipecd.controlplane.auth.credentials import LAST_USED_KEY, Credentials
from pipecd.controlplane.auth.subject import ApiKeyCaller, User
from pipecd.controlplane.auth.verified_keys import STORED_SECONDS
from pipecd.controlplane.cache.memory import MemoryCache
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.jobs.maintenance import delete_expired_keys
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.pipeds import RegisteredPiped
from pipecd.model.clock import Now, to_unix
from pipecd.model.errors import Unauthenticated, Unavailable
from pipecd.proto.model.apikey_pb2 import APIKey
from pipecd.proto.model.piped_pb2 import Piped
from pipecd.secrets import keys
from pipecd.wire.credentials import PipedToken


@pytest.fixture
def comparisons(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every key that was compared by bcrypt."""
    compared: list[str] = []
    slow = keys.key_matches

    def counted(key: str, hashed: str) -> bool:
        compared.append(key)
        return slow(key, hashed)

    monkeypatch.setattr(keys, "key_matches", counted)
    return compared


@pytest.fixture
def credentials(comparisons: list[str], stores: Stores, now: Now) -> Credentials:
    del comparisons
    return Credentials(stores, b"k" * 32, config_projects=frozenset({"declared"}), now=now)


def token(registered: RegisteredPiped, *, key: str = "", project: str = "shop") -> PipedToken:
    return PipedToken(project, registered.id, key or registered.key)


async def test_a_valid_key_is_compared_by_bcrypt_once(
    credentials: Credentials,
    registered: RegisteredPiped,
    comparisons: list[str],
    advance: Callable[[float], None],
) -> None:
    callers = await asyncio.gather(*(credentials.piped(token(registered)) for _ in range(20)))
    advance(3600)
    callers.append(await credentials.piped(token(registered)))
    assert {(c.project, c.piped) for c in callers} == {("shop", registered.id)}
    assert comparisons == [registered.key]


async def test_another_replica_does_not_compare_a_verified_key_again(
    credentials: Credentials,
    registered: RegisteredPiped,
    comparisons: list[str],
    stores: Stores,
    now: Now,
) -> None:
    await credentials.piped(token(registered))
    replica = Credentials(stores, b"k" * 32, now=now)
    await replica.piped(token(registered))
    assert len(comparisons) == 1


async def test_a_restarted_control_plane_does_not_compare_verified_keys_again(
    credentials: Credentials,
    registered: RegisteredPiped,
    comparisons: list[str],
    stores: Stores,
    advance: Callable[[float], None],
    now: Now,
) -> None:
    await credentials.piped(token(registered))
    # What a restart loses: everything in memory, and here also the shared cache.
    restarted = replace(stores, cache=MemoryCache())
    for _ in range(3):
        advance(STORED_SECONDS * 2 / 3)
        await Credentials(restarted, b"k" * 32, now=now).piped(token(registered))
    assert len(comparisons) == 1, "each use extends the time for which the digest is stored"
    advance(STORED_SECONDS)
    assert await delete_expired_keys(stores.verified_keys, now=now) == 1
    await Credentials(restarted, b"k" * 32, now=now).piped(token(registered))
    assert len(comparisons) == 2


async def test_a_stored_digest_is_worthless_for_another_hash_of_the_same_key(
    credentials: Credentials,
    registered: RegisteredPiped,
    comparisons: list[str],
    stores: Stores,
    now: Now,
) -> None:
    await credentials.piped(token(registered))
    another = keys.hash_key(registered.key)

    def replace_hash(piped: Piped) -> None:
        piped.keys[0].hash = another

    await stores.pipeds.update(registered.id, replace_hash)
    await Credentials(stores, b"k" * 32, now=now).piped(token(registered))
    assert len(comparisons) == 2


async def test_a_shared_digest_is_invalid_with_another_encryption_key(
    credentials: Credentials,
    registered: RegisteredPiped,
    comparisons: list[str],
    stores: Stores,
    now: Now,
) -> None:
    await credentials.piped(token(registered))
    await Credentials(stores, b"x" * 32, now=now).piped(token(registered))
    assert len(comparisons) == 2


@pytest.mark.parametrize(
    ("project", "piped", "key"),
    [
        pytest.param("nowhere", "", "", id="the project does not exist"),
        pytest.param("declared", "", "", id="the piped belongs to another project"),
        pytest.param("", "6f0c2a4e-0000-4000-8000-000000000000", "", id="the piped is unknown"),
        pytest.param("", "", "wrong", id="the key is wrong"),
    ],
)
async def test_a_piped_is_refused(
    credentials: Credentials, registered: RegisteredPiped, project: str, piped: str, key: str
) -> None:
    presented = PipedToken(project or "shop", piped or registered.id, key or registered.key)
    with pytest.raises(Unauthenticated) as refusal:
        await credentials.piped(presented)
    assert str(refusal.value) == "Unauthenticated"


async def test_disabling_and_enabling_a_piped_takes_effect_at_once(
    cases: UseCases, registered: RegisteredPiped, admin: User
) -> None:
    await cases.credentials.piped(token(registered))
    await cases.pipeds.disable(registered.id, by=admin)
    with pytest.raises(Unauthenticated):
        await cases.credentials.piped(token(registered))
    await cases.pipeds.enable(registered.id, by=admin)
    assert (await cases.credentials.piped(token(registered))).piped == registered.id


async def test_a_deleted_key_is_refused_at_once(
    cases: UseCases, registered: RegisteredPiped, admin: User, advance: Callable[[float], None]
) -> None:
    advance(5)
    second = await cases.pipeds.add_key(registered.id, by=admin)
    await cases.credentials.piped(token(registered))
    await cases.credentials.piped(token(registered, key=second))
    await cases.pipeds.delete_old_keys(registered.id, by=admin)
    with pytest.raises(Unauthenticated):
        await cases.credentials.piped(token(registered))
    assert (await cases.credentials.piped(token(registered, key=second))).piped == registered.id


async def test_a_key_that_was_refused_before_it_was_added_is_accepted_afterwards(
    cases: UseCases, registered: RegisteredPiped, admin: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "new_piped_key", lambda: "n" * 50)
    with pytest.raises(Unauthenticated):
        await cases.credentials.piped(token(registered, key="n" * 50))
    await cases.pipeds.add_key(registered.id, by=admin)
    assert (await cases.credentials.piped(token(registered, key="n" * 50))).piped == registered.id


async def test_a_signal_invalidates_the_cached_result_of_another_replica(
    cases: UseCases, registered: RegisteredPiped, admin: User, stores: Stores, now: Now
) -> None:
    other = replace(cases, credentials=Credentials(stores, b"k" * 32, now=now))
    await other.credentials.piped(token(registered))
    async with asyncio.TaskGroup() as tasks:
        following = tasks.create_task(other.run())
        await asyncio.sleep(0)
        await cases.pipeds.disable(registered.id, by=admin)
        await asyncio.sleep(0)
        with pytest.raises(Unauthenticated):
            await other.credentials.piped(token(registered))
        following.cancel()


async def test_a_cached_result_expires_without_a_signal(
    credentials: Credentials,
    registered: RegisteredPiped,
    stores: Stores,
    advance: Callable[[float], None],
) -> None:
    await credentials.piped(token(registered))
    await stores.pipeds.update(registered.id, lambda piped: setattr(piped, "disabled", True))
    advance(10)
    with pytest.raises(Unauthenticated):
        await credentials.piped(token(registered))


async def test_wrong_keys_are_throttled_but_a_verified_key_is_accepted(
    credentials: Credentials,
    registered: RegisteredPiped,
    comparisons: list[str],
    advance: Callable[[float], None],
) -> None:
    await credentials.piped(token(registered))
    for guess in range(10):
        with pytest.raises(Unauthenticated):
            await credentials.piped(token(registered, key=f"guess{guess}"))
    with pytest.raises(Unavailable):
        await credentials.piped(token(registered, key="one more"))
    assert len(comparisons) == 11
    advance(30)
    await credentials.piped(token(registered))
    advance(31)
    with pytest.raises(Unauthenticated):
        await credentials.piped(token(registered, key="one more"))


async def test_the_same_wrong_key_is_compared_once(
    credentials: Credentials, registered: RegisteredPiped, comparisons: list[str]
) -> None:
    for _ in range(30):
        with pytest.raises(Unauthenticated):
            await credentials.piped(token(registered, key="wrong"))
    assert comparisons == ["wrong"]


async def test_a_result_from_before_a_change_is_not_cached(
    registered: RegisteredPiped, stores: Stores, now: Now, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The piped is disabled while its key is being compared."""
    comparing, disabled = threading.Event(), threading.Event()

    def slowly(_key: str, _hashed: str) -> bool:
        comparing.set()
        return disabled.wait(5)

    monkeypatch.setattr(keys, "key_matches", slowly)
    credentials = Credentials(stores, b"k" * 32, now=now)
    async with asyncio.TaskGroup() as tasks:
        judging = tasks.create_task(credentials.piped(token(registered)))
        assert await asyncio.to_thread(comparing.wait, 5)
        await stores.pipeds.update(registered.id, lambda piped: setattr(piped, "disabled", True))
        credentials.invalidate(registered.id)
        disabled.set()
    assert judging.result().piped == registered.id
    with pytest.raises(Unauthenticated):
        await credentials.piped(token(registered))


async def test_an_api_key_has_its_role_and_the_time_of_its_last_use(
    cases: UseCases, stores: Stores, admin: User, now: Now, advance: Callable[[float], None]
) -> None:
    key = await cases.api_keys.generate("ci", APIKey.READ_WRITE, by=admin)
    caller = await cases.api_keys.verify(key)
    id = key.split(".")[0]
    assert caller == ApiKeyCaller("shop", id, "ci", may_write=True, creator=admin.name)
    advance(3)
    await cases.api_keys.verify(key)
    used = await stores.cache.get_field(LAST_USED_KEY, caller.key_id)
    assert used == str(to_unix(now())).encode()


async def test_a_read_only_key_may_not_write(cases: UseCases, admin: User) -> None:
    key = await cases.api_keys.generate("reader", APIKey.READ_ONLY, by=admin)
    assert not (await cases.api_keys.verify(key)).may_write


@pytest.mark.parametrize(
    "key",
    [
        pytest.param("no-dot", id="without a dot"),
        pytest.param("a.b.c", id="with two dots"),
        pytest.param(".secret", id="without an id"),
        pytest.param("6f0c2a4e-0000-4000-8000-000000000000.secret", id="of an unknown id"),
    ],
)
async def test_an_api_key_is_refused(credentials: Credentials, key: str) -> None:
    with pytest.raises(Unauthenticated):
        await credentials.api_key(key)


async def test_a_disabled_api_key_is_refused_at_once(cases: UseCases, admin: User) -> None:
    key = await cases.api_keys.generate("ci", APIKey.READ_WRITE, by=admin)
    caller = await cases.api_keys.verify(key)
    await cases.api_keys.disable(caller.key_id, by=admin)
    with pytest.raises(Unauthenticated):
        await cases.api_keys.verify(key)


async def test_the_repr_of_a_caller_does_not_contain_the_key_hash(
    cases: UseCases, registered: RegisteredPiped
) -> None:
    caller = await cases.credentials.piped(token(registered))
    assert caller.key_hash
    assert caller.key_hash not in repr(caller)
