# SPDX-License-Identifier: Apache-2.0
"""Oddities of upstream's control plane: behaviour that clients rely on stays, bugs are fixed.

Those of the RPCs are tested in this file. For the others a table names the test, which must exist.
"""

import ast
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import pytest
from google.protobuf.message import Message

from pipecd.controlplane.auth.subject import PipedCaller, User
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.pipeds import RegisteredPiped
from pipecd.proto.model import deployment_pb2 as model
from pipecd.proto.model.apikey_pb2 import APIKey
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.command_pb2 import COMMAND_SUCCEEDED
from pipecd.proto.model.common_pb2 import ApplicationGitPath, ApplicationGitRepository
from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage
from pipecd.proto.model.event_pb2 import EVENT_OUTDATED
from pipecd.proto.model.logblock_pb2 import LogBlock
from pipecd.proto.model.project_pb2 import ProjectRBACPolicy, ProjectRBACResource
from pipecd.proto.service import api_pb2, piped_pb2, web_pb2
from pipecd.proto.service.api_pb2_grpc import APIServiceStub
from pipecd.proto.service.piped_pb2_grpc import PipedServiceStub
from pipecd.proto.service.web_pb2_grpc import WebServiceStub
from pipecd.wire.credentials import piped_token

if TYPE_CHECKING:
    from pipecd.proto.service.api_pb2_grpc import APIServiceAsyncStub
    from pipecd.proto.service.piped_pb2_grpc import PipedServiceAsyncStub

Connect = Callable[[str], AbstractAsyncContextManager[grpc.aio.Channel]]

TESTS = Path(__file__).parents[2]
OK = grpc.StatusCode.OK
INVALID = grpc.StatusCode.INVALID_ARGUMENT

OTHER_TESTS = {
    "a cookie without an equals sign is overlooked": "controlplane/api/test_web_service.py::test_a_call_without_a_session_is_refused_with",
    "a sign-in of one project can be saved": "controlplane/api/test_web_service.py::test_an_sso_configuration_of_upstreams_console_is_stored",
    "chains can be read": "controlplane/usecases/test_chains.py::test_every_role_can_read_chains",
    "live-state events without a Kubernetes part do no harm": "controlplane/usecases/test_shared_objects.py::test_events_patch_a_snapshot_without_kubernetes_resources",
    "metadata is merged on a deployment that has none": "controlplane/usecases/test_deployments.py::test_metadata_is_merged",
    "an empty state key is reported": "controlplane/sso/test_flow.py::test_a_missing_state_key_is_reported",
    "an encrypted value that is too short is reported": "secrets/test_keyfile.py::test_what_cannot_be_read_is_reported",
    "a configured sign-in without a provider is a mistake in a file": "config/test_controlplane_rules.py::test_a_file_is_refused_with",
    "commands, secrets and applications of other projects are refused to API keys": "controlplane/api/test_api_service.py::test_an_object_of_another_project_is_denied_by",
    "applications of other projects are refused to people": "controlplane/usecases/test_applications.py::test_an_application_of_another_project_cannot_be",
    "events of other projects cannot be settled": "controlplane/usecases/test_events.py::test_a_piped_cannot_report_the_status_of_another_projects_event",
    "live-state events reach the snapshots of their owner only": "controlplane/usecases/test_shared_objects.py::test_events_patch_the_snapshot_of_the_owner_only",
    "a deployment names its own piped and project": "controlplane/usecases/test_deployments.py::test_a_piped_cannot_create_a_deployment",
    "a trace leads to deployments of its project": "controlplane/usecases/test_deployments.py::test_a_trace_lists_only_the_deployments_of_its_project",
    "no secret of a project is shown": "controlplane/usecases/test_accounts.py::test_no_secret_of_a_project_is_shown",
    "hashes of API keys are never shown": "controlplane/api/test_web_service.py::test_api_keys",
    "who is locked out is out within a second everywhere": "controlplane/test_replicas.py::test_access_revoked_at_one_replica_ends_at_the_other_within_a_second",
    "an application that moves has its new owner at once": "controlplane/usecases/test_applications.py::test_moving_an_application_wakes_both_pipeds_and_changes_its_owner_at_once",
    "a plan is stored once; a late one changes nothing": "controlplane/usecases/test_deployments.py::test_a_plan_is_taken_once",
    "the status of a running deployment does not go back": "controlplane/usecases/test_deployments.py::test_a_running_deployment_does_not_return_to_an_earlier_status",
    "chain matchers look at labels": "controlplane/usecases/test_chains.py::test_a_chain_sends_sync_commands_to_the_matching_applications",
    "an application may occur twice in a chain": "controlplane/jobs/test_chain_rules.py::test_an_application_may_occur_in_two_blocks",
    "labels of policies are enforced": "controlplane/api/test_labelled_role.py::test_only_objects_with_the_label_can_be_used_by",
    "a misspelt policy is refused": "controlplane/auth/test_rbac_policy.py::test_an_error_names_line_and_column",
    "the cookie of a sign-in is secure when cookies are, and no longer": "controlplane/sso/test_flow.py::test_cookies_are_secure_without_insecure_cookie",
    "the cookie of a sign-in lasts as long as its session": "controlplane/sso/test_flow.py::test_a_session_lasts_as_long_as_configured",
    "a user without a role is rejected": "controlplane/sso/test_oidc.py::test_a_user_without_a_role_is_rejected_unless_strays_are_viewers",
    "a proxy is used for every request to a provider": "controlplane/sso/test_oidc.py::test_all_requests_go_through_the_proxy",
    "no block of a log is hidden while the cache forgets": "controlplane/datastore/test_stage_logs.py::test_appended_blocks_are_read_at_once_and_after_a_restart",
    "a log line may have any length": "controlplane/datastore/test_stage_logs.py::test_blocks_can_have_any_length_and_contain_any_separator",
    "no update of fifty writers is lost": "controlplane/datastore/test_documents.py::test_no_update_of_fifty_concurrent_writers_is_lost",
    "the indexes have upstream's names, also the one on the wrong table": "controlplane/datastore/test_schema.py::test_the_indexes_have_the_names_of_upstream",
    "the address of a database may have parameters": "controlplane/datastore/test_mysql.py::test_the_forms_of_the_url",
    "files of credentials may end with a line": "controlplane/datastore/test_mysql.py::test_user_and_password_are_read_from_files_without_the_final_line_break",
    "keys come from a generator that cannot be guessed": "secrets/test_keys.py::test_new_keys_have_the_length_and_alphabet_of_upstream",
    "an id is stored as it was typed and escaped on the page": "controlplane/operator/test_pages.py::test_text_is_escaped_on_the_page_and_not_in_the_store",
    "a duplicate does not fill a chunk of insights": "controlplane/insight/test_chunks.py::test_each_deployment_is_stored_once_in_any_batches",
    "a preview that concerns nobody is written all the same": "pipectl/test_pipectl.py::test_a_preview_that_concerns_nobody_is_written_all_the_same",
}  # fmt: skip


@cache
def functions_in(file: Path) -> set[str]:
    return {
        node.name
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


@pytest.mark.parametrize(
    "test", [pytest.param(test, id=sentence) for sentence, test in OTHER_TESTS.items()]
)
def test_another_test_shows_that(test: str) -> None:
    file, _, name = test.partition("::")
    assert name in functions_in(TESTS / file)


async def outcome(call: Any) -> tuple[grpc.StatusCode, str]:
    try:
        await call
    except grpc.aio.AioRpcError as e:
        return e.code(), e.details() or ""
    return OK, ""


@pytest.fixture
def pipeds(piped_channel: grpc.aio.Channel) -> "PipedServiceAsyncStub":
    return PipedServiceStub(piped_channel)


@pytest.fixture
def programs(api_channel: grpc.aio.Channel) -> "APIServiceAsyncStub":
    return APIServiceStub(api_channel)


@pytest.fixture
def people(web_channel: grpc.aio.Channel, cookie: Callable[[User], Any], admin: User) -> Any:
    """Calls WebService as an admin."""
    stub = WebServiceStub(web_channel)

    def call(name: str, request: Message) -> Any:
        return getattr(stub, name)(request, metadata=cookie(admin))

    return call


@pytest.mark.parametrize("cursor", ["", "e30="])
async def test_the_list_of_deployments_in_progress_ends_and_accepts_a_cursor_of_upstream(
    pipeds: "PipedServiceAsyncStub", deployment: Deployment, cursor: str
) -> None:
    request = piped_pb2.ListNotCompletedDeploymentsRequest()
    if "cursor" in request.DESCRIPTOR.fields_by_name:
        request.cursor = cursor
    answer = await pipeds.ListNotCompletedDeployments(request)
    assert [d.id for d in answer.deployments] == [deployment.id]
    assert answer.cursor == ""


async def test_lists_ignore_empty_statuses_kinds_and_ids(
    programs: "APIServiceAsyncStub", deployment: Deployment
) -> None:
    request = api_pb2.ListDeploymentsRequest(statuses=["", ""], kinds=[""], application_ids=[""])
    assert [d.id for d in (await programs.ListDeployments(request)).deployments] == [deployment.id]


async def test_lists_of_web_service_need_no_options(people: Any, application: Application) -> None:
    listed = await people("ListApplications", web_pb2.ListApplicationsRequest())
    assert [a.id for a in listed.applications] == [application.id]
    assert not (await people("ListEvents", web_pb2.ListEventsRequest())).events


async def test_an_api_key_updates_an_application_without_losing_its_deploy_targets(
    programs: "APIServiceAsyncStub", stores: Stores, application: Application
) -> None:
    def target(stored: Application) -> None:
        stored.deploy_targets_by_plugin["kubernetes"].deploy_targets.append("dev")

    await stores.applications.update(application.id, target)
    other = ApplicationGitPath(
        repo=ApplicationGitRepository(id="elsewhere"), path="no/where", config_filename="b.yaml"
    )
    await programs.UpdateApplication(
        api_pb2.UpdateApplicationRequest(
            application_id=application.id, piped_id=application.piped_id, git_path=other
        )
    )
    stored = await stores.applications.get(application.id)
    assert stored.deploy_targets_by_plugin["kubernetes"].deploy_targets == ["dev"]
    # As with upstream, the repository and path are set only when an application is added.
    assert (stored.git_path.repo.id, stored.git_path.path) == ("site", "apps/cart")
    assert stored.git_path.config_filename == "b.yaml"


async def test_an_invalid_request_is_not_an_internal_error(
    people: Any, registered: RegisteredPiped, stranger: User, cases: UseCases, stores: Stores
) -> None:
    policy = ProjectRBACPolicy(
        resources=[ProjectRBACResource(type=ProjectRBACResource.PIPED)],
        actions=[ProjectRBACPolicy.GET],
    )
    role = web_pb2.AddProjectRBACRoleRequest(name="dev", policies=[policy])
    third = web_pb2.RecreatePipedKeyRequest(id=registered.id)
    await people("AddProjectRBACRole", role)
    await people("RecreatePipedKey", third)
    foreign = await cases.api_keys.generate("theirs", APIKey.READ_ONLY, by=stranger)
    key = web_pb2.DisableAPIKeyRequest(id=foreign.partition(".")[0])
    codes = {
        "role": await outcome(people("AddProjectRBACRole", role)),
        "key": await outcome(people("RecreatePipedKey", third)),
        "name": await outcome(people("RegisterPiped", web_pb2.RegisterPipedRequest())),
        "other": await outcome(people("DisableAPIKey", key)),
    }
    assert {name: code.name for name, (code, _) in codes.items()} == {
        "role": "ALREADY_EXISTS",
        "key": "FAILED_PRECONDITION",
        "name": "INVALID_ARGUMENT",
        "other": "PERMISSION_DENIED",
    }
    assert not (await stores.api_keys.get(foreign.partition(".")[0])).disabled


async def test_an_outdated_event_keeps_its_times(
    pipeds: "PipedServiceAsyncStub",
    cases: UseCases,
    admin: User,
    stores: Stores,
    advance: Callable[[float], None],
) -> None:
    told = api_pb2.RegisterEventRequest(name="image", data="v1")
    id = await cases.events.register(told, by=admin)
    before = await stores.events.get(id)
    advance(60)
    status = piped_pb2.ReportEventStatusesRequest.Event(
        id=id, status=EVENT_OUTDATED, status_description="a newer one came"
    )
    await pipeds.ReportEventStatuses(piped_pb2.ReportEventStatusesRequest(events=[status]))
    after = await stores.events.get(id)
    assert after.status == EVENT_OUTDATED
    assert (after.updated_at, after.handled_at) == (before.updated_at, before.handled_at)


async def test_validation_rules_of_upstream_apply(
    pipeds: "PipedServiceAsyncStub",
    programs: "APIServiceAsyncStub",
    deployment: Deployment,
    registered: RegisteredPiped,
) -> None:
    about: dict[str, Any] = {"deployment_id": deployment.id, "stage_id": "s1"}
    running = piped_pb2.ReportStageStatusChangedRequest(status=model.STAGE_RUNNING, **about)
    assert (await outcome(pipeds.ReportStageStatusChanged(running)))[0] is INVALID
    running.completed_at = 1
    assert (await outcome(pipeds.ReportStageStatusChanged(running)))[0] is OK
    empty = piped_pb2.ReportStageLogsRequest(blocks=[LogBlock(index=1, created_at=1)], **about)
    assert (await outcome(pipeds.ReportStageLogs(empty)))[0] is INVALID
    repo = ApplicationGitRepository(id="site")
    short = api_pb2.AddApplicationRequest(
        name="web", piped_id=registered.id, git_path=ApplicationGitPath(repo=repo, path=".")
    )
    code, words = await outcome(programs.AddApplication(short))
    assert code is INVALID
    assert 'value does not match regex pattern "^[^/].+$"' in words


async def test_the_output_of_a_restart_command_is_accepted(
    pipeds: "PipedServiceAsyncStub",
    cases: UseCases,
    admin: User,
    registered: RegisteredPiped,
    stores: Stores,
) -> None:
    id = await cases.pipeds.restart(registered.id, by=admin)
    await pipeds.ReportCommandHandled(
        piped_pb2.ReportCommandHandledRequest(
            command_id=id, status=COMMAND_SUCCEEDED, handled_at=1, output=id.encode()
        )
    )
    assert await stores.files.get(f"command-output/{id}.json") == id.encode()


async def test_unregistered_applications_have_another_cache_key_than_upstreams(
    pipeds: "PipedServiceAsyncStub", stores: Stores
) -> None:
    report = piped_pb2.ReportUnregisteredApplicationConfigurationsRequest()
    await pipeds.ReportUnregisteredApplicationConfigurations(report)
    # Upstream would fail on a value that is not Go's own encoding.
    assert await stores.cache.fields("HASHKEY:UNREGISTERED_APPS:shop") == {}


async def test_an_approval_checks_the_project_before_the_approvers(
    web_channel: grpc.aio.Channel,
    cookie: Callable[[User], Any],
    deployment: Deployment,
    stranger: User,
    stores: Stores,
) -> None:
    def ask_for_ann(stored: Deployment) -> None:
        stored.stages[1].authorized_operators.append("ann")

    await stores.deployments.update(deployment.id, ask_for_ann)
    request = web_pb2.ApproveStageRequest(deployment_id=deployment.id, stage_id="s2")
    call = WebServiceStub(web_channel).ApproveStage(request, metadata=cookie(stranger))
    code, words = await outcome(call)
    assert code is grpc.StatusCode.PERMISSION_DENIED
    assert "ann" not in words


async def test_a_stage_with_the_operation_skip_can_be_skipped_whatever_its_name(
    people: Any, cases: UseCases, new_deployment: Callable[[], Deployment], piped: PipedCaller
) -> None:
    deployment = new_deployment()
    await cases.deployment_reports.create(deployment, by=piped)
    stage = PipelineStage(
        id="s9",
        name="SOAK",
        created_at=1,
        updated_at=1,
        available_operation=model.MANUAL_OPERATION_SKIP,
    )
    plan = piped_pb2.ReportDeploymentPlannedRequest(deployment_id=deployment.id, stages=[stage])
    await cases.deployment_reports.report_planned(plan, by=piped)
    request = web_pb2.SkipStageRequest(deployment_id=deployment.id, stage_id="s9")
    assert (await people("SkipStage", request)).command_id


async def test_the_next_call_of_a_disabled_piped_is_refused(
    connect: Connect, cases: UseCases, admin: User, registered: RegisteredPiped
) -> None:
    request = piped_pb2.GetDesiredVersionRequest()
    async with connect(piped_token("shop", registered.id, registered.key)) as channel:
        stub = PipedServiceStub(channel)
        assert (await outcome(stub.GetDesiredVersion(request)))[0] is OK
        await cases.pipeds.disable(registered.id, by=admin)
        code, _ = await outcome(stub.GetDesiredVersion(request))
    assert code is grpc.StatusCode.UNAUTHENTICATED
