# SPDX-License-Identifier: Apache-2.0
"""The differences of all applications with Git on one page."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pipecd.controlplane.auth.rbac import Action, Permission, Resource
from pipecd.controlplane.console.application_list import application_list
from pipecd.controlplane.console.application_summary import list_summaries
from pipecd.controlplane.console.applications_view import ApplicationRow, application_row
from pipecd.controlplane.console.diff_view import MAX_LINES, DiffView
from pipecd.controlplane.console.formatting import Timestamp, plural, sentence, timestamp
from pipecd.controlplane.console.list_filters import (
    PAGE_SIZES,
    PageUrl,
    canonical_params,
    parse_application_query,
)
from pipecd.controlplane.console.live_state import application_drift
from pipecd.controlplane.console.page_context import BrowserSession, PageContext
from pipecd.controlplane.console.status_badge import StatusCount, offline_pipeds
from pipecd.model.application import SyncStatus
from pipecd.model.errors import Denied, NotFound
from pipecd.proto.model.application_pb2 import Application

PATH = "/applications/drift"
_LIST = Permission(Resource.APPLICATION, Action.LIST)
_UPDATE = Permission(Resource.APPLICATION, Action.UPDATE)
_OUT_OF_SYNC = str(int(SyncStatus.OUT_OF_SYNC))
# Diffs are long, so that a page has as few of them as a list has rows at least.
_PAGE_SIZE = PAGE_SIZES[0]
# The applications of a page share its lines; each has all of its own on its page.
_MAX_LINES_OF_ALL = 2 * MAX_LINES


@dataclass(frozen=True)
class DriftedApplication:
    """An application and its differences with Git; `is_open` where there are few of them.

    `may_sync` is whether the user can sync it.
    """

    row: ApplicationRow
    drift: DiffView
    text: str
    checked: Timestamp | None
    is_open: bool
    may_sync: bool


class DriftPages:
    """Route and handler of the page."""

    def __init__(self, context: PageContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        return [Route(PATH, self._context.page(self.show_page), methods=["GET"])]

    async def show_page(self, request: Request, session: BrowserSession) -> Response:
        user, cases, params = session.user, self._context.cases, request.query_params
        await cases.access.scope(user, _LIST)
        asked = parse_application_query(canonical_params(params, status="syncStatus"))
        query = replace(
            asked, statuses=(_OUT_OF_SYNC,), sort="name", descending=False, size=_PAGE_SIZE
        )
        found = await list_summaries(cases.applications, query.filter(user.project), by=user)
        health = await cases.livestate.health(by=user)
        listing = application_list(found, query, health=health)
        now = self._context.local_now(request)
        max_lines = min(MAX_LINES, _MAX_LINES_OF_ALL // max(len(listing.shown), 1))
        drifted: list[DriftedApplication] = []
        for id in listing.shown:
            with suppress(Denied, NotFound):
                application = await cases.applications.get(id, by=user)
                shown = await application_drift(application, max_lines=max_lines)
                drift = _with_own_anchors(shown, id)
                drifted.append(
                    DriftedApplication(
                        application_row(application, now),
                        drift,
                        text=_drift_text(application, drift),
                        checked=timestamp(application.sync_state.timestamp, now),
                        is_open=len(listing.shown) <= 3,
                        may_sync=not application.disabled
                        and not await self._context.denied_reason(user, _UPDATE, application),
                    )
                )
        pipeds = await self._context.visible_pipeds(user) or ()
        names = {piped.id: piped.name for piped in pipeds}
        filters = [f for f in query.active_filters(names) if f.param != "syncStatus"]
        state = QueryParams([(f.param, f.value) for f in filters] + _layout(params))
        url = PageUrl(PATH, state, reset=("page",))
        return self._context.render(
            request,
            "drift.html",
            applications=drifted,
            offline_ids={piped.id for piped in offline_pipeds(pipeds)},
            listing=listing,
            summary=_summary(listing.total),
            chips=url.chips(filters),
            query=query,
            url=url,
            list_url=replace(query, page=1).url().with_params(),
            is_split=params.get("diff", "") == "split",
        )


def drift_url(applications: PageUrl, counts: Iterable[StatusCount]) -> str:
    """The page for the applications of a filtered list; empty if none of them differs."""
    if not any(count.value == _OUT_OF_SYNC for count in counts):
        return ""
    query = applications.with_params(
        syncStatus="", activeStatus="", health="", sort="", dir="", size="", page=""
    ).partition("?")[2]
    return f"{PATH}?{query}" if query else PATH


def _drift_text(application: Application, drift: DiffView) -> str:
    """What the piped says about the differences that the diff itself does not."""
    if drift.note:
        return f"{drift.note}."
    reason = sentence(application.sync_state.short_reason)
    if not reason and not drift:
        return "The piped has reported no details."
    return "" if reason in drift.findings else reason


def _layout(params: QueryParams) -> list[tuple[str, str]]:
    return [("diff", "split")] if params.get("diff") == "split" else []


def _summary(total: int) -> str:
    """How many applications differ from Git; empty without any, of which the page says more."""
    if not total:
        return ""
    differs = "differs" if total == 1 else "differ"
    return f"{plural(total, 'application')} {differs} from Git."


def _with_own_anchors(drift: DiffView, id: str) -> DiffView:
    """The diff with anchors that no other application on the page has."""
    sections = (replace(each, anchor=f"{each.anchor}-{id}") for each in drift.sections)
    return replace(drift, sections=tuple(sections))
