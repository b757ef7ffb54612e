# SPDX-License-Identifier: Apache-2.0
"""Tells people why an application is not deployed although it should be."""

import structlog

from pipecd.config.application.notification import NotificationSpec
from pipecd.git.commit import Commit
from pipecd.model.application import SyncStatus
from pipecd.model.errors import PipecdError, Unauthenticated, Unavailable
from pipecd.piped.notify.mentions import mentions_in
from pipecd.piped.notify.notice import Notice, NoticeKind, Notices
from pipecd.piped.planning.deployment import message_of
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.notification_pb2 import NotificationEventDeploymentTriggerFailed

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_KIND = NoticeKind.DEPLOYMENT_TRIGGER_FAILED


class TriggerFailures:
    """Tells each reason once, for as long as it lasts; commits that change nothing are no news."""

    def __init__(self, notices: Notices) -> None:
        self._notices = notices
        self._told: dict[str, str] = {}
        self._logged: dict[str, tuple[str, str]] = {}

    def looked(
        self,
        application: Application,
        commit: Commit,
        mistake: str,
        mentions: NotificationSpec | None,
    ) -> None:
        """Somebody looked whether to deploy; without a mistake all is well."""
        self._logged.pop(application.id, None)
        self._tell(application, commit, mistake, mentions)

    def failed(
        self,
        application: Application,
        commit: Commit,
        error: PipecdError,
        mentions: NotificationSpec | None,
    ) -> None:
        """It could not be decided or done; each commit and reason is logged once."""
        reason = str(error)
        is_passing = isinstance(error, Unavailable | Unauthenticated)
        if self._logged.get(application.id) != (commit.hash, reason):
            self._logged[application.id] = (commit.hash, reason)
            log.warning(
                "application not triggered yet" if is_passing else "application not triggered",
                application=application.id,
                commit=commit.hash,
                error=reason,
            )
        if not is_passing:
            self._tell(application, commit, reason, mentions)

    def _tell(
        self,
        application: Application,
        commit: Commit,
        mistake: str,
        mentions: NotificationSpec | None,
    ) -> None:
        before = self._told.get(application.id, _known(application))
        self._told[application.id] = mistake
        if mistake and mistake != before:
            self._notices.tell(_notice(application, commit, mistake, mentions))


def _known(application: Application) -> str:
    """What an earlier piped told, as far as the control plane remembers."""
    state = application.sync_state
    return state.reason if state.status == SyncStatus.INVALID_CONFIG else ""


def _notice(
    application: Application, commit: Commit, mistake: str, mentions: NotificationSpec | None
) -> Notice:
    facts = NotificationEventDeploymentTriggerFailed(
        application=application,
        commit_hash=commit.hash,
        commit_message=message_of(commit),
        reason=mistake,
    )
    if mentions is not None:
        mentions_in(mentions, _KIND).add_to(facts)
    return Notice(_KIND, facts, key=f"{_KIND.name}/{application.id}/{commit.hash}/{mistake}")
