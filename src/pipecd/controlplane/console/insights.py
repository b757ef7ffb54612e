# SPDX-License-Identifier: Apache-2.0
"""The page of insights: the four DORA metrics, the deployments behind a point, and CSV."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.console.application_summary import ApplicationSummary, list_summaries
from pipecd.controlplane.console.formatting import DAY
from pipecd.controlplane.console.insights_cards import summary_cards
from pipecd.controlplane.console.insights_view import (
    MAX_DEPLOYMENTS,
    METRICS,
    RANGES,
    RESOLUTIONS,
    DeploymentBehind,
    InsightsQuery,
    chart,
    chosen_application,
    csv_text,
    deployment_behind,
    numbers,
    offered_labels,
    offered_names,
    offered_resolutions,
    parse_insights_query,
    period_text,
    range_before,
    selected_period,
    time_range,
)
from pipecd.controlplane.console.page_context import BrowserSession, PageContext
from pipecd.controlplane.datastore.applications import ApplicationFilter
from pipecd.controlplane.insight.series import Metric, Ratio, Resolution, TimeRange
from pipecd.controlplane.usecases.insights import InsightQuery
from pipecd.model.clock import to_unix
from pipecd.model.errors import Denied

PATH = "/insights"


class InsightPages:
    """Routes and handlers of insights."""

    def __init__(self, context: PageContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        page = self._context.page
        return [
            Route(PATH, page(self.show_page), methods=["GET"]),
            Route(f"{PATH}.csv", page(self.download), methods=["GET"]),
        ]

    async def show_page(self, request: Request, session: BrowserSession) -> Response:
        user, now = session.user, self._context.local_now(request)
        query = parse_insights_query(request.query_params)
        whole = time_range(query, now)
        applications = await self._applications(user)
        application, candidates = chosen_application(applications or (), query.application)
        by_metric = await self._by_metric(query, whole, application, user)
        before = await self._by_metric(query, range_before(whole), application, user)
        url = query.url(PATH)
        period = selected_period(query, whole)
        behind: tuple[DeploymentBehind, ...] = ()
        behind_count = 0
        if period is not None:
            found = await self._context.cases.insights.behind(
                _query(period, query, application), limit=MAX_DEPLOYMENTS, by=user
            )
            behind_count = found.count
            ids = [each.id for each in found.latest]
            with suppress(Denied):
                documents = await self._context.cases.deployments.get_many(ids, by=user)
                behind = tuple(
                    deployment_behind(documents[id], found.restored, now)
                    for id in ids
                    if id in documents
                )
        return self._context.render(
            request,
            "insights.html",
            query=query,
            charts=[
                chart(metric, whole, ratios, url, query.at, before[metric])
                for metric, ratios in by_metric.items()
            ],
            explanations={words.key: words.explanation for words in METRICS.values()},
            numbers=numbers(whole, by_metric),
            ranges=[(name, text) for name, (text, _) in RANGES.items()],
            resolutions=[(n, RESOLUTIONS[n][0]) for n in offered_resolutions(query.range)],
            application=application,
            candidates=candidates,
            names=offered_names(applications or ()),
            labels=offered_labels(applications or ()),
            cards=summary_cards(
                applications,
                await self._context.visible_pipeds(user),
                await self._last_day(user),
            ),
            chips=url.chips(query.active_filters(_name(application, query.application))),
            url=url,
            csv=query.url(f"{PATH}.csv").with_params(),
            period=period and period_text(period.start, period.resolution),
            behind=behind,
            behind_count=behind_count,
        )

    async def download(self, request: Request, session: BrowserSession) -> Response:
        query = parse_insights_query(request.query_params)
        whole = time_range(query, self._context.now())
        applications = await self._applications(session.user)
        application, _ = chosen_application(applications or (), query.application)
        by_metric = await self._by_metric(query, whole, application, session.user)
        headers = {"Content-Disposition": 'attachment; filename="insights.csv"'}
        return PlainTextResponse(csv_text(whole, by_metric), media_type="text/csv", headers=headers)

    async def _by_metric(
        self,
        query: InsightsQuery,
        whole: TimeRange,
        application: ApplicationSummary | None,
        user: User,
    ) -> Mapping[Metric, Mapping[int, Ratio]]:
        insight = _query(whole, query, application)
        return await self._context.cases.insights.ratios(tuple(METRICS), insight, by=user)

    async def _applications(self, user: User) -> Sequence[ApplicationSummary] | None:
        """The applications of the project; None if the user may not list them."""
        with suppress(Denied):
            everything = ApplicationFilter(user.project)
            return await list_summaries(self._context.cases.applications, everything, by=user)
        return None

    async def _last_day(self, user: User) -> Ratio:
        """What has failed of the last 24 hours, as far as it has been collected."""
        now = to_unix(self._context.now())
        query = InsightQuery(TimeRange(now - DAY, now, Resolution.DAILY))
        metric = Metric.CHANGE_FAILURE_RATE
        by_day = (await self._context.cases.insights.ratios((metric,), query, by=user))[metric]
        return sum(by_day.values(), Ratio())


def _name(application: ApplicationSummary | None, value: str) -> str:
    return application.name if application else value


def _query(
    whole: TimeRange, query: InsightsQuery, application: ApplicationSummary | None
) -> InsightQuery:
    """The query of the charts; an application that does not exist has no deployments."""
    insight = InsightQuery(whole, labels=query.labels)
    if not query.application:
        return insight
    return replace(insight, application=application.id if application else query.application)
