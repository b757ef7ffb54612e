# SPDX-License-Identifier: Apache-2.0
"""Which sessions a change of a project ends, and whether a session has ended."""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import NamedTuple

from pipecd.controlplane.auth import rbac
from pipecd.controlplane.auth.rbac import ADMIN
from pipecd.controlplane.auth.sessions import SSO, VerifiedSession
from pipecd.controlplane.datastore.sign_ins import SessionEnding
from pipecd.proto.model.project_pb2 import Project, ProjectSSOConfig

_MAX_SUBJECT = 255
# How far the clock of one replica may be ahead of that of another.
_CLOCK_SKEW_MILLIS = 60_000


class EndingScope(Enum):
    """Which sessions of a project an ending is about; the subject is in parentheses."""

    SESSION = "session"  # One session (its id).
    USER = "user"  # All sessions of a user (their name).
    STATIC_ADMIN = "static admin"  # Those that began with a password (its name).
    SSO = "sso"  # All that began at a provider.
    ROLE = "role"  # Those that began at a provider and have a role (its name).
    ALL = "all"


class EndingTarget(NamedTuple):
    """The sessions that an ending is about."""

    scope: EndingScope
    subject: str = ""

    @property
    def stored_subject(self) -> str:
        """The subject as it is stored; a name that does not fit is hashed."""
        if len(self.subject) <= _MAX_SUBJECT:
            return self.subject
        return f"sha256:{hashlib.sha256(self.subject.encode()).hexdigest()}"


def targets_of(session: VerifiedSession) -> Iterator[EndingTarget]:
    """The targets that a session belongs to."""
    user = session.user
    yield EndingTarget(EndingScope.SESSION, session.id)
    yield EndingTarget(EndingScope.USER, user.name)
    yield EndingTarget(EndingScope.ALL)
    # Sessions of upstream have no sign-in method: they may have begun in either way.
    if session.via != SSO and user.roles == (ADMIN,):
        yield EndingTarget(EndingScope.STATIC_ADMIN, user.name)
    if session.via in (SSO, ""):
        yield EndingTarget(EndingScope.SSO)
        for role in user.roles:
            yield EndingTarget(EndingScope.ROLE, role)


def touched_by(before: Project, after: Project) -> tuple[EndingTarget, ...]:
    """The sessions that a change of a project ends.

    A changed or removed role ends the sessions that have it, a group that loses its role those that
    have that role. A new client secret or lifetime of single sign-on ends none.
    """
    targets: dict[EndingTarget, None] = {}
    admin = (before.static_admin.username, before.static_admin.password_hash)
    is_disabled = after.static_admin_disabled and not before.static_admin_disabled
    if is_disabled or admin != (after.static_admin.username, after.static_admin.password_hash):
        targets[EndingTarget(EndingScope.STATIC_ADMIN, before.static_admin.username)] = None
    had_sso = before.HasField("sso") or before.shared_sso_name
    is_another = before.shared_sso_name != after.shared_sso_name
    if had_sso and (is_another or _provider(before.sso) != _provider(after.sso)):
        targets[EndingTarget(EndingScope.SSO)] = None
    policies = {role.name: list(role.policies) for role in rbac.roles_of(after)}
    groups = {group.sso_group: group.role for group in rbac.user_groups_of(after)}
    changed = [
        role.name
        for role in rbac.roles_of(before)
        if policies.get(role.name) != list(role.policies)
    ]
    changed += [
        group.role
        for group in rbac.user_groups_of(before)
        if groups.get(group.sso_group) != group.role
    ]
    targets |= {EndingTarget(EndingScope.ROLE, role): None for role in changed}
    return tuple(targets)


def _provider(config: ProjectSSOConfig) -> ProjectSSOConfig:
    """The configuration without what says nothing about who may sign in."""
    provider = ProjectSSOConfig()
    provider.CopyFrom(config)
    provider.ClearField("session_ttl")
    if provider.HasField("github"):
        provider.github.ClearField("upload_url")
    for name in ("github", "google", "oidc"):
        if provider.HasField(name):
            getattr(provider, name).ClearField("client_secret")
    return provider


class EndedSessions:
    """The endings that matter now, in memory."""

    def __init__(self) -> None:
        self._endings: defaultdict[str, dict[tuple[str, str], SessionEnding]] = defaultdict(dict)
        self.latest_millis = 0

    def add(self, endings: Iterable[SessionEnding]) -> None:
        for ending in endings:
            known, key = self._endings[ending.project], (ending.scope, ending.subject)
            if key not in known or known[key].ended_at_millis < ending.ended_at_millis:
                known[key] = ending
            self.latest_millis = max(self.latest_millis, ending.ended_at_millis)

    def drop_expired(self, now: int) -> None:
        """Forgets the endings of sessions that have expired."""
        for project, endings in list(self._endings.items()):
            kept = {key: ending for key, ending in endings.items() if ending.expires_at > now}
            if kept:
                self._endings[project] = kept
            else:
                del self._endings[project]

    def contain(self, session: VerifiedSession) -> bool:
        """Whether the session has ended."""
        endings = self._endings.get(session.user.project)
        if not endings:
            return False
        for target in targets_of(session):
            ending = endings.get((target.scope.value, target.stored_subject))
            if ending is not None and session.issued_millis <= ending.ended_at_millis:
                return True
        return False

    def ending_millis(self, now_millis: int) -> int:
        """The time of a new ending, after that of every session that another replica issued."""
        return max(now_millis + _CLOCK_SKEW_MILLIS, self.latest_millis + 1)

    def issue_millis(self, now_millis: int) -> int:
        """The time of a new session: after every known ending, so that it is part of none."""
        return max(now_millis, self.latest_millis + 1)
