# SPDX-License-Identifier: Apache-2.0
"""Which notices a route lets pass."""

from collections.abc import Mapping

from pipecd.config.piped.notification import RouteSpec
from pipecd.piped.notify.notice import NoticeKind
from pipecd.piped.notify.subject import Subject


def passes(route: RouteSpec, kind: NoticeKind, about: Subject) -> bool:
    """Whether the route wants such a notice; what it ignores weighs more than what it asks for."""
    return not _ignored(route, kind, about) and _asked_for(route, kind, about)


def _ignored(route: RouteSpec, kind: NoticeKind, about: Subject) -> bool:
    return (
        kind.name in route.ignore_events
        or kind.group in route.ignore_groups
        or bool(about.application and about.application in route.ignore_apps)
        or bool(route.ignore_labels.items() & _labels(about).items())
    )


def _asked_for(route: RouteSpec, kind: NoticeKind, about: Subject) -> bool:
    if route.events and kind.name not in route.events:
        return False
    if route.groups and kind.group not in route.groups:
        return False
    if about.labels is None:
        # What is about piped itself cannot be told apart by application.
        return True
    if route.apps and about.application not in route.apps:
        return False
    return route.labels.items() <= _labels(about).items()


def _labels(about: Subject) -> Mapping[str, str]:
    return dict(about.labels or {})
