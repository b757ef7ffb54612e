# SPDX-License-Identifier: Apache-2.0
"""`--output` of the commands that change something, and what `application add` refuses."""

import json
from typing import Any

import grpc
import pytest

from pipecd.proto.service import api_pb2 as pb
from pipecd.proto.service.api_pb2_grpc import APIServiceServicer
from servers.api_service import serve_api
from servers.control_plane import StartControlPlane

ADD = (
    "application add --app-name web --app-kind ECS --piped-id {piped} --platform-provider p"
    " --repo-id repo --app-dir apps/web"
)


async def test_what_was_changed_is_printed_in_four_forms(
    start_plane: StartControlPlane, piped_with_repository: Any, typed_at: Any
) -> None:
    async with start_plane() as plane:
        typed, piped = typed_at(plane), await piped_with_repository(plane)
        id = (await typed(f"{ADD.format(piped=piped)} --output name"))[1].strip()
        for line in (
            f"application disable --app-id {id}",
            f"application enable --app-id {id}",
            f"application edit --app-id {id} --config-file-name b.pipecd.yaml",
            f"application delete --app-id {id}",
        ):
            assert (await typed(f"{line} --output name"))[:2] == (0, f"{id}\n")
        for verb in ("disable", "enable"):
            line = f"piped {verb} --piped-id {piped} --output"
            assert json.loads((await typed(f"{line} json"))[1]) == {"piped_id": piped}
            assert (await typed(f"{line} table"))[1] == f"PIPED ID\n{piped}\n"


async def test_a_difference_is_printed_in_four_forms(
    start_plane: StartControlPlane, piped_with_repository: Any, typed_at: Any
) -> None:
    async with start_plane() as plane:
        typed, piped = typed_at(plane), await piped_with_repository(plane)
        id = (await typed(f"{ADD.format(piped=piped)} --output name"))[1].strip()
        diff = f"application diff --app-id {id} --output"
        assert (await typed(f"{diff} name"))[:2] == (0, "")

        def drift(application: Any) -> None:
            application.sync_state.status = 3
            application.sync_state.timestamp = 1
            application.sync_state.short_reason = "1 differs"
            application.sync_state.reason = "- a\n+ b"

        await plane.running.stores.applications.update(id, drift)
        document = {"application_id": id, "status": "OUT_OF_SYNC", "reason": "- a\n+ b"}
        assert json.loads((await typed(f"{diff} json"))[1]) == document
        assert (await typed(f"{diff} name"))[1] == f"{id}\n"
        assert (await typed(f"{diff} table"))[1].splitlines()[1].endswith("OUT_OF_SYNC  1 differs")


@pytest.mark.parametrize("labels", ["bad", "a=b,bad", "=b", "a=b=c", "a=b,"])
async def test_a_malformed_label_of_a_new_application_is_refused(
    labels: str, start_plane: StartControlPlane, piped_with_repository: Any, typed_at: Any
) -> None:
    async with start_plane() as plane:
        typed, piped = typed_at(plane), await piped_with_repository(plane)
        code, _, err = await typed(f"{ADD.format(piped=piped)} --labels {labels}")
        assert (code, "invalid label" in err, "write KEY=VALUE" in err) == (1, True, True), err
        assert (await typed("application list"))[1] == "{}\n"


class OtherControlPlane(APIServiceServicer):
    """A control plane that does not set deploy targets; all other RPCs are unimplemented."""

    def __init__(self, *, deletes: bool) -> None:
        self.applications: list[str] = []
        self._deletes = deletes

    async def ListApplications(self, request: Any, context: Any) -> pb.ListApplicationsResponse:
        return pb.ListApplicationsResponse()

    async def AddApplication(self, request: Any, context: Any) -> pb.AddApplicationResponse:
        self.applications.append("app-1")
        return pb.AddApplicationResponse(application_id="app-1")

    async def DeleteApplication(self, request: Any, context: Any) -> pb.DeleteApplicationResponse:
        if not self._deletes:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "going down")
        self.applications.remove(request.application_id)
        return pb.DeleteApplicationResponse(application_id=request.application_id)


@pytest.mark.parametrize(
    ("deletes", "words", "left"),
    [
        pytest.param(True, "; the application was not added", [], id="it is deleted again"),
        pytest.param(
            False, "application app-1 was added without deploy targets; delete it", ["app-1"],
            id="it cannot be deleted, which the error says",
        ),
    ],
)  # fmt: skip
async def test_an_application_is_not_left_behind_without_its_targets(
    deletes: bool, words: str, left: list[str], type_line: Any
) -> None:
    plane = OtherControlPlane(deletes=deletes)  # pyright: ignore[reportAbstractUsage]
    async with serve_api(plane) as address:
        line = f"{ADD.format(piped='p')} --deploy-target ecs=a --address {address} --insecure"
        code, _, err = await type_line(f"{line} --api-key k")
    assert (code, words in err) == (1, True), err
    assert "failed to set the deploy targets" in err
    assert plane.applications == left
