# SPDX-License-Identifier: Apache-2.0
"""Charts, for people."""

from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.insight.applications import counts
from pipecd.controlplane.insight.series import Metric, Resolution, Span
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.insights import Question
from pipecd.proto.model import insight_pb2 as model
from pipecd.proto.service import web_pb2 as pb

_KIND = model.InsightApplicationCountLabelKey.Name(model.KIND)
_STATUS = model.InsightApplicationCountLabelKey.Name(model.ACTIVE_STATUS)


class InsightRpcs:
    """The RPCs about how a project delivers."""

    def __init__(self, cases: UseCases) -> None:
        self._insights = cases.insights

    async def GetInsightData(
        self, request: pb.GetInsightDataRequest, caller: User
    ) -> pb.GetInsightDataResponse:
        span = Span(request.range_from, request.range_to, Resolution(request.resolution))
        question = Question(
            Metric(request.metrics_kind), span, request.application_id, request.labels
        )
        points = await self._insights.series(question, by=caller)
        stream = model.InsightSampleStream(
            data_points=[model.InsightDataPoint(timestamp=at, value=value) for at, value in points]
        )
        return pb.GetInsightDataResponse(type=model.MATRIX, matrix=[stream])

    async def GetInsightApplicationCount(
        self, _request: pb.GetInsightApplicationCountRequest, caller: User
    ) -> pb.GetInsightApplicationCountResponse:
        book = await self._insights.applications(by=caller)
        return pb.GetInsightApplicationCountResponse(
            updated_at=book.updated_at,
            counts=[
                model.InsightApplicationCount(labels={_KIND: kind, _STATUS: status}, count=count)
                for (kind, status), count in counts(book.applications).items()
            ],
        )
