# SPDX-License-Identifier: Apache-2.0
"""A notifier that records its events."""

from pipecd.piped.notify.event import NotificationEvent
from pipecd.piped.notify.notifier import Notifier, PipedIdentity


class RecordingNotifier(Notifier):
    """Records events instead of sending them."""

    def __init__(self) -> None:
        super().__init__(PipedIdentity("", "", ""))
        self.events: list[NotificationEvent] = []

    def notify(self, event: NotificationEvent) -> None:
        self.events.append(event)

    @property
    def names(self) -> list[str]:
        return [event.type.name for event in self.events]
