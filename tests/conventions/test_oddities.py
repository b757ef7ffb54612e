# SPDX-License-Identifier: Apache-2.0
"""Oddities of upstream's control plane outside of its RPCs, each with the test that covers it.

`tests/controlplane/api/test_oddities.py` tests those of the RPCs.
"""

import ast
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

TESTS_OF_ODDITIES = {
    "a cookie without an equals sign is overlooked": "controlplane/api/test_web_service.py::test_a_call_without_a_session_is_refused_with",
    "a sign-in of one project can be saved": "controlplane/api/test_web_service.py::test_an_sso_configuration_of_upstreams_console_is_stored",
    "chains can be read": "controlplane/usecases/test_chains.py::test_every_role_can_read_chains",
    "live-state events without a Kubernetes part do no harm": "controlplane/usecases/test_shared_objects.py::test_events_patch_a_snapshot_without_kubernetes_resources",
    "metadata is merged on a deployment that has none": "controlplane/usecases/test_deployments.py::test_metadata_is_merged",
    "an empty state key is reported": "controlplane/sso/test_flow.py::test_a_missing_state_key_is_reported",
    "an encrypted value that is too short is reported": "secrets/test_keyfile.py::test_invalid_ciphertext_is_reported",
    "a configured sign-in without a provider is a mistake in a file": "config/test_controlplane_rules.py::test_a_file_is_refused_with",
    "commands, secrets and applications of other projects are refused to API keys": "controlplane/api/test_api_service.py::test_an_object_of_another_project_is_denied_by",
    "applications of other projects are refused to users": "controlplane/usecases/test_applications.py::test_an_application_of_another_project_cannot_be",
    "events of other projects cannot be settled": "controlplane/usecases/test_events.py::test_a_piped_cannot_report_the_status_of_another_projects_event",
    "live-state events reach the snapshots of their owner only": "controlplane/usecases/test_shared_objects.py::test_events_patch_the_snapshot_of_the_owner_only",
    "a deployment names its own piped and project": "controlplane/usecases/test_deployments.py::test_a_piped_cannot_create_a_deployment",
    "a trace leads to deployments of its project": "controlplane/usecases/test_deployments.py::test_a_trace_lists_only_the_deployments_of_its_project",
    "no secret of a project is shown": "controlplane/usecases/test_accounts.py::test_no_secret_of_a_project_is_shown",
    "hashes of API keys are never shown": "controlplane/api/test_web_service.py::test_api_keys",
    "revoked access ends within a second at every replica": "controlplane/test_replicas.py::test_access_revoked_at_one_replica_ends_at_the_other_within_a_second",
    "an application that moves has its new owner at once": "controlplane/usecases/test_applications.py::test_moving_an_application_wakes_both_pipeds_and_changes_its_owner_at_once",
    "a plan is stored once; a late one changes nothing": "controlplane/usecases/test_deployments.py::test_a_plan_is_taken_once",
    "the status of a running deployment does not go back": "controlplane/usecases/test_deployments.py::test_a_running_deployment_does_not_return_to_an_earlier_status",
    "chain matchers compare labels": "controlplane/usecases/test_chains.py::test_a_chain_sends_sync_commands_to_the_matching_applications",
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
    "a plan preview without affected applications is written, too": "pipectl/test_pipectl.py::test_a_plan_preview_without_affected_applications_is_written_too",
}  # fmt: skip


@cache
def functions_in(file: Path) -> set[str]:
    return {
        node.name
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


@pytest.mark.parametrize(
    "test", [pytest.param(test, id=oddity) for oddity, test in TESTS_OF_ODDITIES.items()]
)
def test_the_test_of_an_oddity_exists(test: str) -> None:
    file, _, name = test.partition("::")
    assert name in functions_in(TESTS / file)
