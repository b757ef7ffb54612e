# SPDX-License-Identifier: Apache-2.0
"""Tells people that an application differs from Git or no longer does, or is healthy again."""

from pipecd.model.application import SyncStatus
from pipecd.model.clock import Now, to_unix, utc_now
from pipecd.piped.notify.event import EventType, NotificationEvent
from pipecd.piped.notify.notifier import Notifier
from pipecd.piped.reporting.sync_states import SyncState
from pipecd.proto.model import application_pb2
from pipecd.proto.model.application_pb2 import Application, ApplicationSyncState
from pipecd.proto.model.livestate_pb2 import ApplicationLiveStateSnapshot
from pipecd.proto.model.notification_pb2 import (
    NotificationEventApplicationOutOfSync,
    NotificationEventApplicationSynced,
)

_Snapshot = ApplicationLiveStateSnapshot
_COMPARED = (SyncStatus.SYNCED, SyncStatus.OUT_OF_SYNC)


class Announcer:
    """Hears of every change of a state; what lies between two comparisons is not told.

    A deployment or trouble may have come in between, so the last comparison is remembered. One that
    finds an application in sync is only news after one that did not.
    """

    def __init__(self, notifier: Notifier, *, now: Now = utc_now) -> None:
        self._notifier, self._now = notifier, now
        self._last: dict[str, SyncStatus] = {}

    def heard(self, application: Application, before: SyncState, after: SyncState) -> None:
        """The state of an application is another."""
        if before.status in _COMPARED:
            self._last.setdefault(application.id, before.status)
        if after.status not in _COMPARED:
            return
        last = self._last.get(application.id, SyncStatus.SYNCED)
        self._last[application.id] = after.status
        if last is after.status:
            return
        state = ApplicationSyncState(
            status=application_pb2.ApplicationSyncStatus.ValueType(after.status),
            short_reason=after.short_reason,
            reason=after.reason,
            timestamp=to_unix(self._now()),
        )
        if after.status is SyncStatus.OUT_OF_SYNC:
            facts = NotificationEventApplicationOutOfSync(application=application, state=state)
            self._notifier.notify(NotificationEvent(EventType.APPLICATION_OUT_OF_SYNC, facts))
        else:
            facts = NotificationEventApplicationSynced(application=application, state=state)
            self._notifier.notify(NotificationEvent(EventType.APPLICATION_SYNCED, facts))


class Recoveries:
    """Hears how applications are; that one is healthy is only news after it was not."""

    def __init__(self, notifier: Notifier) -> None:
        self._notifier = notifier
        self._ill: set[str] = set()

    def heard(self, application: Application, health: int) -> None:
        """Somebody looked at what runs for an application."""
        if health not in (_Snapshot.HEALTHY, _Snapshot.UNKNOWN):
            self._ill.add(application.id)
        elif health == _Snapshot.HEALTHY and application.id in self._ill:
            self._ill.remove(application.id)
            # The wire has no message for this kind; the one for a state tells as much.
            facts = NotificationEventApplicationSynced(
                application=application, state=application.sync_state
            )
            self._notifier.notify(NotificationEvent(EventType.APPLICATION_HEALTHY, facts))
