# SPDX-License-Identifier: Apache-2.0
"""The overview, which users see first: what needs somebody, and what is going on."""

from collections.abc import Awaitable, Sequence
from contextlib import suppress
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.console.deployments_view import deployment_row
from pipecd.controlplane.console.list_filters import PERIODS
from pipecd.controlplane.console.live_updates import TopicKind, list_topics
from pipecd.controlplane.console.overview_view import (
    DIFFERENT,
    FAILED_SINCE,
    ProjectState,
    first_start,
    is_repaired,
    overview_text,
    overview_tiles,
    shown_failures,
    waiting_text,
)
from pipecd.controlplane.console.page_context import BrowserSession, PageContext
from pipecd.controlplane.console.status_badge import piped_state
from pipecd.controlplane.datastore.applications import ApplicationFilter
from pipecd.controlplane.datastore.deployments import COMPLETED, NOT_COMPLETED, DeploymentFilter
from pipecd.controlplane.datastore.documents import Page, PageRequest
from pipecd.model.clock import to_unix
from pipecd.model.deployment import DeploymentStatus
from pipecd.model.errors import Denied, NotFound
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.model.piped_pb2 import Piped

PATH = "/overview"
# How many deployments that have ended are listed.
_LATEST = 5

T = TypeVar("T", Application, Deployment)


class OverviewPages:
    """Route and handler of the overview."""

    def __init__(self, context: PageContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        return [Route(PATH, self._context.page(self.show_page), methods=["GET"])]

    async def show_page(self, request: Request, session: BrowserSession) -> Response:
        user, cases, now = session.user, self._context.cases, self._context.local_now(request)
        in_progress = DeploymentFilter(user.project, statuses=NOT_COMPLETED)
        failures = DeploymentFilter(user.project, statuses=(int(DeploymentStatus.FAILURE),))
        since = PageRequest(min_updated_at=to_unix(now) - PERIODS[FAILED_SINCE])
        different = ApplicationFilter(user.project, sync_statuses=DIFFERENT)
        completed = DeploymentFilter(user.project, statuses=COMPLETED)
        latest = await _or_empty(cases.deployments.list(completed, PageRequest(_LATEST), by=user))
        visible = await self._context.visible_pipeds(user)
        failed = await _or_empty(cases.deployments.list(failures, since, by=user))
        state = ProjectState(
            unfinished=await _or_empty(cases.deployments.list(in_progress, by=user)),
            failed=failed,
            different=await _or_empty(cases.applications.list(different, by=user)),
            pipeds=visible or (),
            repaired=await self._repaired(shown_failures(failed), user),
            last_reports=await self._last_reports(visible or (), user),
        )
        tiles = overview_tiles(state, user.name, now)
        return self._context.render(
            request,
            "overview.html",
            # What is not zero comes first, the most urgent of it first.
            tiles=sorted(tiles, key=lambda tile: not tile.count),
            text=overview_text(state, user.name),
            needs_piped=visible == (),
            first_start=first_start(visible or ()),
            needs_application=bool(visible)
            and not (latest or state.unfinished)
            and await self._has_no_application(user),
            latest=tuple(deployment_row(each, now) for each in latest),
            news=waiting_text(state.unfinished, user.name),
            topics=await list_topics(
                self._context,
                user,
                TopicKind.APPLICATIONS,
                TopicKind.DEPLOYMENTS,
                TopicKind.PIPEDS,
            ),
        )

    async def _has_no_application(self, user: User) -> bool:
        with suppress(Denied):
            every = ApplicationFilter(user.project)
            listed = await self._context.cases.applications.list(every, PageRequest(1), by=user)
            return not listed.items
        return False

    async def _last_reports(self, pipeds: Sequence[Piped], user: User) -> dict[str, int]:
        """When the pipeds that are offline reported last, by id."""
        lost = [each for each in pipeds if piped_state(each) == "offline"]
        if not lost:
            return {}
        activity = await self._context.cases.pipeds.activity(lost, by=user)
        return {id: each.last_seen for id, each in activity.items()}

    async def _repaired(self, failed: Sequence[Deployment], user: User) -> frozenset[str]:
        """Those of the failed deployments whose application has succeeded since."""
        repaired: set[str] = set()
        for each in failed:
            with suppress(Denied, NotFound):
                application = await self._context.cases.applications.get(
                    each.application_id, by=user
                )
                if is_repaired(each, application):
                    repaired.add(each.id)
        return frozenset(repaired)


async def _or_empty(listing: Awaitable[Page[T]]) -> tuple[T, ...]:
    """The items of a list; none if the user may not see them."""
    with suppress(Denied):
        return (await listing).items
    return ()
