# SPDX-License-Identifier: Apache-2.0
"""Notifies about applications that drift from Git, are in sync again, or are healthy again."""

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


class SyncStatusNotifier:
    """Notifies when the result of the comparison with Git changes.

    A deployment or an error may come between two comparisons, so the last one is remembered. That
    an application is in sync is an event only after it was out of sync.
    """

    def __init__(self, notifier: Notifier, *, now: Now = utc_now) -> None:
        self._notifier, self._now = notifier, now
        self._last: dict[str, SyncStatus] = {}

    def on_change(self, application: Application, before: SyncState, after: SyncState) -> None:
        """Handles a change of the sync state of an application."""
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
            metadata = NotificationEventApplicationOutOfSync(application=application, state=state)
            self._notifier.notify(NotificationEvent(EventType.APPLICATION_OUT_OF_SYNC, metadata))
        else:
            metadata = NotificationEventApplicationSynced(application=application, state=state)
            self._notifier.notify(NotificationEvent(EventType.APPLICATION_SYNCED, metadata))


class HealthNotifier:
    """Notifies when an application is healthy after it was unhealthy."""

    def __init__(self, notifier: Notifier) -> None:
        self._notifier = notifier
        self._unhealthy: set[str] = set()

    def on_health(self, application: Application, health: int) -> None:
        """Handles the health of a reported live state."""
        if health not in (_Snapshot.HEALTHY, _Snapshot.UNKNOWN):
            self._unhealthy.add(application.id)
        elif health == _Snapshot.HEALTHY and application.id in self._unhealthy:
            self._unhealthy.remove(application.id)
            # The wire has no message for this type; the one for a sync state has the same fields.
            metadata = NotificationEventApplicationSynced(
                application=application, state=application.sync_state
            )
            self._notifier.notify(NotificationEvent(EventType.APPLICATION_HEALTHY, metadata))
