# SPDX-License-Identifier: Apache-2.0
"""Projects, roles, sessions and API keys."""

import asyncio
from collections.abc import Callable

import pytest

from pipecd.controlplane.auth.credentials import LAST_USED_KEY
from pipecd.controlplane.auth.sessions import SessionTokens
from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.access import ForeignProject
from pipecd.controlplane.usecases.projects import StaticAdmin
from pipecd.model.clock import Now
from pipecd.model.errors import (
    AlreadyExists,
    Conflict,
    Denied,
    NotFound,
    Unauthenticated,
    Unavailable,
    UserMistake,
)
from pipecd.proto.model import project_pb2 as pb
from pipecd.proto.model.apikey_pb2 import APIKey
from pipecd.secrets.keyfile import KeyFile

KEY = b"0123456789abcdef0123456789abcdef\n"


def policy(*actions: pb.ProjectRBACPolicy.Action.ValueType) -> pb.ProjectRBACPolicy:
    return pb.ProjectRBACPolicy(
        resources=[pb.ProjectRBACResource(type=pb.ProjectRBACResource.PIPED)], actions=actions
    )


async def test_a_new_project_gets_a_generated_static_admin(
    cases: UseCases, static_admin: StaticAdmin
) -> None:
    assert (len(static_admin.username), len(static_admin.password)) == (10, 30)
    signed = await cases.sessions.sign_in("shop", *static_admin)
    assert signed.user == User("shop", static_admin.username, ("Admin",))
    assert await cases.sessions.user(signed.token) == signed.user


async def test_an_existing_project_cannot_be_added_again(
    cases: UseCases, static_admin: StaticAdmin
) -> None:
    del static_admin
    with pytest.raises(AlreadyExists):
        await cases.projects.add("shop")
    with pytest.raises(AlreadyExists):
        await cases.projects.add("declared")
    with pytest.raises(UserMistake):
        await cases.projects.add("")
    assert [p.id for p in await cases.projects.list()] == ["shop"]


async def test_a_reset_password_replaces_the_old_one(
    cases: UseCases, static_admin: StaticAdmin
) -> None:
    fresh = await cases.projects.reset_admin("shop")
    await cases.sessions.sign_in("shop", *fresh)
    with pytest.raises(Unauthenticated, match=r"^Unable to login$"):
        await cases.sessions.sign_in("shop", *static_admin)


@pytest.mark.parametrize(
    ("project", "username", "password", "error", "message"),
    [
        pytest.param("nowhere", "", "", Unauthenticated, "Unable to login", id="project"),
        pytest.param("declared", "root", "x", Unauthenticated, "Unable to login", id="password"),
        pytest.param(
            "declared", "toor", "config-password", Unauthenticated, "Unable to login", id="name"
        ),
    ],
)
async def test_a_sign_in_fails_for_a_wrong(
    cases: UseCases,
    project: str,
    username: str,
    password: str,
    error: type[Exception],
    message: str,
) -> None:
    with pytest.raises(error, match=f"^{message}$"):
        await cases.sessions.sign_in(project, username, password)


async def test_a_project_of_the_configuration_file_allows_sign_in_but_no_changes(
    cases: UseCases,
) -> None:
    root = (await cases.sessions.sign_in("declared", "root", "config-password")).user
    project = await cases.projects.get(by=root)
    assert [role.name for role in project.rbac_roles] == ["Admin", "Editor", "Viewer"]
    for attempt in (
        cases.projects.disable_static_admin(by=root),
        cases.projects.set_static_admin("a", "b", by=root),
        cases.projects.set_sso(pb.ProjectSSOConfig(session_ttl=1), by=root),
        cases.projects.set_legacy_teams(pb.ProjectRBACConfig(), by=root),
        cases.roles.add("r", [policy(pb.ProjectRBACPolicy.GET)], by=root),
        cases.roles.add_group("g", "Viewer", by=root),
        cases.projects.reset_admin("declared"),
    ):
        with pytest.raises(
            Conflict,
            match="Failed to update a debug project specified in the control-plane configuration",
        ):
            await attempt


async def test_wrong_passwords_are_throttled_per_project_and_name(
    cases: UseCases, static_admin: StaticAdmin, advance: Callable[[float], None]
) -> None:
    name = static_admin.username
    guesses = (cases.sessions.sign_in("shop", name, f"guess {n}") for n in range(25))
    outcomes = await asyncio.gather(*guesses, return_exceptions=True)
    assert sum(isinstance(outcome, Unauthenticated) for outcome in outcomes) == 10
    assert sum(isinstance(outcome, Unavailable) for outcome in outcomes) == 15
    with pytest.raises(Unavailable):
        await cases.sessions.sign_in("shop", *static_admin)
    await cases.sessions.sign_in("declared", "root", "config-password")
    advance(61)
    await cases.sessions.sign_in("shop", *static_admin)


@pytest.mark.usefixtures("single_sign_on")
async def test_a_disabled_static_admin_cannot_sign_in(
    cases: UseCases, static_admin: StaticAdmin, admin: User
) -> None:
    await cases.projects.disable_static_admin(by=admin)
    with pytest.raises(Denied, match=r"^Static admin is disabling$"):
        await cases.sessions.sign_in("shop", *static_admin)
    await cases.projects.enable_static_admin(by=admin)
    await cases.projects.set_static_admin("boss", "a better password", by=admin)
    await cases.sessions.sign_in("shop", "boss", "a better password")


@pytest.mark.usefixtures("single_sign_on")
async def test_disabling_the_static_admin_ends_its_sessions(
    cases: UseCases, static_admin: StaticAdmin, admin: User
) -> None:
    token = (await cases.sessions.sign_in("shop", *static_admin)).token
    await cases.projects.disable_static_admin(by=admin)
    with pytest.raises(Unauthenticated):
        await cases.sessions.user(token)
    await cases.projects.enable_static_admin(by=admin)
    with pytest.raises(Unauthenticated):
        await cases.sessions.user(token)
    assert await cases.sessions.sign_in("shop", *static_admin)


async def test_changing_the_password_ends_the_sessions_of_the_static_admin(
    cases: UseCases, static_admin: StaticAdmin
) -> None:
    token = (await cases.sessions.sign_in("shop", *static_admin)).token
    await cases.projects.reset_admin("shop")
    with pytest.raises(Unauthenticated):
        await cases.sessions.user(token)


@pytest.mark.usefixtures("single_sign_on")
async def test_disabling_the_static_admin_does_not_end_an_sso_session_with_the_same_name(
    cases: UseCases, admin: User
) -> None:
    token = cases.sessions.issue(admin)
    await cases.projects.disable_static_admin(by=admin)
    assert await cases.sessions.user(token) == admin


@pytest.mark.parametrize(
    ("name", "roles", "goes_on"),
    [
        pytest.param("", ("Admin",), False, id="of the static admin ends"),
        pytest.param("", ("Admin", "dev"), True, id="with two roles stays valid"),
        pytest.param("olga", ("Admin",), True, id="with another name stays valid"),
    ],
)
@pytest.mark.usefixtures("single_sign_on")
async def test_disabling_the_static_admin_with_a_session_of_upstream(
    *,
    cases: UseCases,
    static_admin: StaticAdmin,
    now: Now,
    name: str,
    roles: tuple[str, ...],
    goes_on: bool,
) -> None:
    admin = User("shop", static_admin.username, ("Admin",))
    user = User("shop", name or static_admin.username, roles)
    token = SessionTokens(KEY, now).sign(user)
    await cases.projects.disable_static_admin(by=admin)
    if goes_on:
        assert await cases.sessions.user(token) == user
    else:
        with pytest.raises(Unauthenticated):
            await cases.sessions.user(token)


async def test_a_session_of_an_unknown_project_is_invalid(cases: UseCases) -> None:
    with pytest.raises(Unauthenticated):
        await cases.sessions.user(cases.sessions.issue(User("gone", "ann", ("Admin",))))


async def test_a_session_ends_after_a_week(
    cases: UseCases, static_admin: StaticAdmin, advance: Callable[[float], None]
) -> None:
    token = (await cases.sessions.sign_in("shop", *static_admin)).token
    advance(7 * 24 * 3600 - 1)
    await cases.sessions.user(token)
    advance(2)
    with pytest.raises(Unauthenticated):
        await cases.sessions.user(token)
    with pytest.raises(Unauthenticated):
        await cases.sessions.user("not.a.token")


async def test_no_secret_of_a_project_is_shown(
    cases: UseCases, stores: Stores, admin: User, viewer: User
) -> None:
    sso = pb.ProjectSSOConfig(
        provider=pb.ProjectSSOConfig.OIDC,
        session_ttl=24,
        github=pb.ProjectSSOConfig.GitHub(client_id="gh-id", client_secret="gh-secret"),
        oidc=pb.ProjectSSOConfig.Oidc(
            client_id="oi-id", client_secret="oi-secret", issuer="https://i"
        ),
    )
    await cases.projects.set_sso(sso, by=admin)
    stored = await stores.projects.get("shop")
    assert KeyFile(KEY).decrypt(stored.sso.github.client_secret) == "gh-secret"
    assert (stored.sso.session_ttl, stored.sso.oidc.issuer) == (24, "https://i")
    shown = str(await cases.projects.get(by=viewer)) + str(await cases.projects.list())
    for secret in ("gh-id", "gh-secret", "oi-id", "oi-secret", stored.static_admin.password_hash):
        assert secret not in shown
    assert stored.sso.github.client_id not in shown


async def test_only_admins_can_change_settings(cases: UseCases, viewer: User) -> None:
    for attempt in (
        cases.projects.disable_static_admin(by=viewer),
        cases.projects.set_static_admin("a", "b", by=viewer),
        cases.roles.add("r", [policy(pb.ProjectRBACPolicy.GET)], by=viewer),
        cases.api_keys.list(by=viewer),
        cases.api_keys.generate("k", APIKey.READ_WRITE, by=viewer),
        cases.api_keys.disable("k", by=viewer),
    ):
        with pytest.raises(Denied, match=r"^Permission Denied$"):
            await attempt


async def test_a_changed_role_applies_at_once(cases: UseCases, admin: User) -> None:
    ops = User("shop", "olga", ("ops",))
    with pytest.raises(Denied):
        await cases.pipeds.list(by=ops)
    await cases.roles.add("ops", [policy(pb.ProjectRBACPolicy.LIST)], by=admin)
    await cases.pipeds.list(by=ops)
    with pytest.raises(Denied):
        await cases.pipeds.register("x", "", by=ops)
    await cases.roles.update("ops", [policy(pb.ProjectRBACPolicy.ALL)], by=admin)
    await cases.pipeds.register("x", "", by=ops)
    await cases.roles.delete("ops", by=admin)
    with pytest.raises(Denied):
        await cases.pipeds.list(by=ops)


async def test_invalid_changes_of_roles_and_groups_are_refused(
    cases: UseCases, admin: User
) -> None:
    roles, get = cases.roles, policy(pb.ProjectRBACPolicy.GET)
    await roles.add("ops", [get], by=admin)
    await roles.add_group("org/ops", "ops", by=admin)
    await cases.projects.set_legacy_teams(pb.ProjectRBACConfig(editor="org/old"), by=admin)
    for attempt, error in (
        (roles.add("ops", [get], by=admin), AlreadyExists),
        (roles.add("Admin", [get], by=admin), AlreadyExists),
        (roles.update("Viewer", [get], by=admin), Conflict),
        (roles.delete("Viewer", by=admin), Conflict),
        (roles.update("nope", [get], by=admin), NotFound),
        (roles.delete("nope", by=admin), NotFound),
        (roles.add_group("org/ops", "Viewer", by=admin), AlreadyExists),
        (roles.add_group("org/old", "Viewer", by=admin), AlreadyExists),
        (roles.add_group("org/x", "nope", by=admin), NotFound),
        (roles.delete_group("org/x", by=admin), NotFound),
    ):
        with pytest.raises(error):
            await attempt
    project = await cases.projects.get(by=admin)
    groups = [(g.sso_group, g.role) for g in project.user_groups]
    assert groups == [("org/old", "Editor"), ("org/ops", "ops")]
    await roles.delete_group("org/old", by=admin)
    await roles.delete_group("org/ops", by=admin)
    assert not (await cases.projects.get(by=admin)).user_groups


async def test_built_in_roles_are_never_stored(
    cases: UseCases, stores: Stores, admin: User
) -> None:
    await cases.roles.add("ops", [policy(pb.ProjectRBACPolicy.GET)], by=admin)
    assert [role.name for role in (await stores.projects.get("shop")).rbac_roles] == ["ops"]


async def test_api_keys_are_listed_without_their_hashes(
    cases: UseCases, stores: Stores, admin: User, advance: Callable[[float], None]
) -> None:
    used = await cases.api_keys.generate("used", APIKey.READ_WRITE, by=admin)
    advance(1)
    await cases.api_keys.generate("unused", APIKey.READ_ONLY, by=admin)
    await cases.api_keys.verify(used)
    first, second = await cases.api_keys.list(by=admin)
    assert {first.key_hash, second.key_hash} == {"redacted"}
    assert (first.name, first.creator) == ("used", admin.name)
    assert first.last_used_at > 0
    assert second.last_used_at == 0
    await stores.cache.put_field(LAST_USED_KEY, second.id, b"rubbish")
    assert len(await cases.api_keys.list(by=admin, enabled=True)) == 2


async def test_a_key_of_another_project_cannot_be_disabled(
    cases: UseCases, admin: User, stranger: User
) -> None:
    key = await cases.api_keys.generate("ci", APIKey.READ_WRITE, by=admin)
    with pytest.raises(ForeignProject):
        await cases.api_keys.disable(key.split(".")[0], by=stranger)
    with pytest.raises(NotFound):
        await cases.api_keys.disable("nope", by=admin)
    await cases.api_keys.verify(key)
