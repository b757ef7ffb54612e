# SPDX-License-Identifier: Apache-2.0
"""The page of deployment traces: which deployments a commit of a source repository led to."""

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pipecd.controlplane.console.filled_page import filled_page
from pipecd.controlplane.console.formatting import pipectl_flags
from pipecd.controlplane.console.list_filters import ActiveFilter, PageUrl
from pipecd.controlplane.console.live_updates import TopicKind, list_topics
from pipecd.controlplane.console.page_context import BrowserSession, PageContext
from pipecd.controlplane.console.traces_view import (
    FULL_HASH_LENGTH,
    TRACE_STATUSES,
    has_status,
    is_commit_prefix,
    trace_matches,
    traces_by_day,
)
from pipecd.controlplane.datastore.documents import PageRequest
from pipecd.controlplane.usecases.deployments import TracedDeployments

LIST_PATH = "/deployment-traces"
_PAGE_SIZE = 30


class TracePages:
    """Route and handler of the page of deployment traces."""

    def __init__(self, context: PageContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        return [Route(LIST_PATH, self._context.page(self.list_page), methods=["GET"])]

    async def list_page(self, request: Request, session: BrowserSession) -> Response:
        params = request.query_params
        # The parameter of upstream's console, or the search field of ours.
        text_param = "commitHash" if params.get("commitHash", "").strip() else "q"
        text = params.get(text_param, "").strip()
        is_whole_hash = is_commit_prefix(text) and len(text) == FULL_HASH_LENGTH
        status = params.get("status", "")
        status = status if status in TRACE_STATUSES else ""
        before = params.get("before", "")

        async def read(part: PageRequest) -> tuple[Sequence[TracedDeployments], str]:
            listed = await self._context.cases.deployments.traces(
                text.lower() if is_whole_hash else "",
                part,
                by=session.user,
                matches=lambda trace: trace_matches(trace, text),
            )
            return listed.items, listed.cursor

        found, cursor = await filled_page(
            read, lambda traced: has_status(traced, status), before, _PAGE_SIZE
        )
        url = PageUrl(LIST_PATH, params, reset=("before",))
        return self._context.render(
            request,
            "traces.html",
            pipectl_flags=" \\\n  ".join(pipectl_flags(self._context.public_url(request))),
            days=traces_by_day(found, self._context.local_now(request)),
            text=text,
            chosen_status=status,
            statuses=tuple(TRACE_STATUSES.items()),
            chips=url.chips(
                each
                for each in (
                    # The text is one filter, whichever of its two parameters it is in.
                    ActiveFilter(text_param, text, f"“{text}”"),
                    ActiveFilter("status", status, TRACE_STATUSES.get(status, "").lower()),
                )
                if each.value
            ),
            topics=""
            if before
            else await list_topics(
                self._context, session.user, TopicKind.DEPLOYMENTS, TopicKind.EVENTS
            ),
            older=url.with_params(before=cursor) if cursor else "",
        )
