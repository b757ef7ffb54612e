# SPDX-License-Identifier: Apache-2.0
"""The stages of the plugin, with a server that behaves as Cloud Run does."""

import asyncio
import json
from typing import Any

import pytest

from pipecd.sdk import DISPLAY_KEY, Backoff, StageStatus
from pipecd.sdk.polling import Polling
from plugins.cloudrun.testbed import Application, manifest
from servers.cloud_run import PROJECT, CloudRun, Refused
from servers.web import Answer

SUCCESS, FAILURE = StageStatus.SUCCESS, StageStatus.FAILURE
OLD, NEW = "1111111aaaa", "2222222bbbb"
RUNNING, CANARY = "web-v10-1111111", "web-v20-2222222"
V2 = "gcr.io/shop/web:v2.0"
CRASHES = "The user-provided container failed to start and listen on the port."


async def test_a_quick_sync_creates_a_service_with_all_traffic(
    application: Application, cloud_run: CloudRun
) -> None:
    result = await application.commit(OLD).run("CLOUDRUN_SYNC")
    assert (result.status, result.message) == (SUCCESS, f"Revision {RUNNING} gets all traffic")
    assert cloud_run.traffic("web") == {RUNNING: 100}
    marks = {
        "pipecd-dev-managed-by": "piped",
        "pipecd-dev-piped": "piped-1",
        "pipecd-dev-application": "application-1",
        "pipecd-dev-commit-hash": OLD,
    }
    assert cloud_run.services["web"].body["metadata"]["labels"] == marks
    template = cloud_run.services["web"].body["spec"]["template"]["metadata"]
    assert template["labels"] == {**marks, "pipecd-dev-revision-name": RUNNING}
    assert application.host.stage_metadata[DISPLAY_KEY] == f"{RUNNING} 100%"


async def test_a_canary_gets_a_growing_share(application: Application, cloud_run: CloudRun) -> None:
    old = await application.deploy(OLD)
    new = application.commit(NEW, manifest(V2), running=old)
    assert (await new.run("CLOUDRUN_PROMOTE", {"percent": "10%"})).status is SUCCESS
    assert cloud_run.traffic("web") == {CANARY: 10, RUNNING: 90}
    assert application.host.stage_metadata["promote-percentage"] == "10"
    assert (await new.run("CLOUDRUN_PROMOTE", {"percent": 50}, index=1)).status is SUCCESS
    assert cloud_run.traffic("web") == {CANARY: 50, RUNNING: 50}
    done = await new.run("CLOUDRUN_PROMOTE", {"percent": 100}, index=2)
    assert (done.status, done.message) == (SUCCESS, f"Revision {CANARY} gets 100% of the traffic")
    assert cloud_run.traffic("web") == {CANARY: 100}
    # Repeating a stage creates no further revision, as upstream's does.
    assert set(cloud_run.revisions) == {RUNNING, CANARY}


async def test_a_share_of_zero_only_creates_the_revision(
    application: Application, cloud_run: CloudRun
) -> None:
    new = application.commit(NEW, manifest(V2), running=await application.deploy(OLD))
    assert (await new.run("CLOUDRUN_PROMOTE", {})).status is SUCCESS
    assert cloud_run.traffic("web") == {RUNNING: 100}
    assert CANARY in cloud_run.revisions


async def test_a_rollback_restores_the_running_revision(
    application: Application, cloud_run: CloudRun
) -> None:
    old = await application.deploy(OLD)
    new = application.commit(NEW, manifest(V2), running=old)
    assert (await new.run("CLOUDRUN_PROMOTE", {"percent": 30})).status is SUCCESS
    result = await new.run("CLOUDRUN_ROLLBACK", is_rollback=True)
    assert (result.status, result.message) == (SUCCESS, f"Revision {RUNNING} gets all traffic")
    assert cloud_run.traffic("web") == {RUNNING: 100}
    labels = cloud_run.services["web"].body["metadata"]["labels"]
    assert labels["pipecd-dev-commit-hash"] == OLD


async def test_labels_of_the_manifest_stay_beside_those_of_piped_and_are_rolled_back(
    application: Application, cloud_run: CloudRun
) -> None:
    def labelled(image: str, **labels: str) -> dict[str, Any]:
        service = manifest(image)
        service["metadata"]["labels"] = labels
        service["spec"]["template"]["metadata"]["labels"] = labels
        return service

    def own(metadata: dict[str, Any]) -> dict[str, str]:
        labels: dict[str, str] = metadata["labels"]
        return {key: labels[key] for key in labels if not key.startswith("pipecd-dev-")}

    def live() -> dict[str, Any]:
        body: dict[str, Any] = cloud_run.services["web"].body
        return body

    old = await application.deploy(OLD, labelled("gcr.io/shop/web:v1.0", team="shop", tier="web"))
    assert live()["metadata"]["labels"]["pipecd-dev-managed-by"] == "piped"
    new = application.commit(NEW, labelled(V2, team="other"), running=old)
    assert (await new.run("CLOUDRUN_PROMOTE", {"percent": 30})).status is SUCCESS
    assert own(live()["metadata"]) == {"team": "other"}
    assert own(live()["spec"]["template"]["metadata"]) == {"team": "other"}
    assert (await new.run("CLOUDRUN_ROLLBACK", is_rollback=True)).status is SUCCESS
    assert own(live()["metadata"]) == {"team": "shop", "tier": "web"}
    assert live()["metadata"]["labels"]["pipecd-dev-commit-hash"] == OLD


async def test_a_revision_that_does_not_start_leaves_the_traffic(
    application: Application, cloud_run: CloudRun
) -> None:
    old = await application.deploy(OLD)
    cloud_run.broken_images[V2] = CRASHES
    new = application.commit(NEW, manifest(V2), running=old)
    result = await new.run("CLOUDRUN_SYNC")
    assert result.status is FAILURE
    assert result.message == (
        f"revision {CANARY} is not ready: {CRASHES} "
        "(log: https://console.cloud.google.com/logs/viewer); correct the service manifest or the "
        "image of its container"
    )
    assert cloud_run.traffic("web") == {RUNNING: 100}
    assert (await new.run("CLOUDRUN_ROLLBACK", is_rollback=True)).status is SUCCESS
    assert cloud_run.traffic("web") == {RUNNING: 100}


async def test_a_first_deployment_cannot_be_rolled_back(application: Application) -> None:
    result = await application.commit(NEW).run("CLOUDRUN_ROLLBACK", is_rollback=True)
    assert result.status is FAILURE
    assert "There is no commit to roll back to" in result.message


async def test_the_first_revision_of_a_pipeline_gets_all_traffic(
    application: Application, cloud_run: CloudRun
) -> None:
    result = await application.commit(OLD).run("CLOUDRUN_PROMOTE", {"percent": 10})
    assert result.status is SUCCESS
    assert cloud_run.traffic("web") == {RUNNING: 100}


async def test_a_stage_that_is_cancelled_and_repeated_continues(
    application: Application, cloud_run: CloudRun
) -> None:
    new = application.commit(NEW, manifest(V2), running=await application.deploy(OLD))
    cloud_run.seconds = 0.1
    stage = asyncio.ensure_future(new.run("CLOUDRUN_PROMOTE", {"percent": 20}))
    await application.host.until(lambda: any("Waiting for" in line for line in new.host.lines))
    stage.cancel()
    await asyncio.wait({stage})
    assert (await new.run("CLOUDRUN_PROMOTE", {"percent": 20})).status is SUCCESS
    assert cloud_run.traffic("web") == {CANARY: 20, RUNNING: 80}
    assert set(cloud_run.revisions) == {RUNNING, CANARY}


async def test_a_canary_of_upstream_is_promoted_and_rolled_back(
    application: Application, cloud_run: CloudRun
) -> None:
    # Upstream ignores a tag after the port of a registry, so its revision has another name.
    image, renamed = "registry:5000/web:v1.0", "web--1111111"
    old = await application.deploy(OLD, manifest(image))
    revision = cloud_run.revisions.pop(RUNNING)
    revision.body["metadata"]["name"] = revision.body["template"]["metadata"]["name"] = renamed
    cloud_run.revisions[renamed] = revision
    cloud_run.services["web"].body["spec"]["traffic"][0]["revisionName"] = renamed
    new = application.commit(NEW, manifest(V2), running=old)
    assert (await new.run("CLOUDRUN_PROMOTE", {"percent": 40})).status is SUCCESS
    assert cloud_run.traffic("web") == {CANARY: 40, renamed: 60}
    assert (await new.run("CLOUDRUN_ROLLBACK", is_rollback=True)).status is SUCCESS
    assert cloud_run.traffic("web") == {renamed: 100}


def set_piped(cloud_run: CloudRun, revision: str, piped: str) -> None:
    """Lets a revision be one that a piped with another id has deployed."""
    service = cloud_run.services["web"].body["spec"]["template"]["metadata"]
    template = cloud_run.revisions[revision].body["template"]["metadata"]
    for metadata in (template, *((service,) if service["name"] == revision else ())):
        metadata["labels"]["pipecd-dev-piped"] = piped


async def test_a_rollback_to_a_revision_with_another_configuration_restores_the_traffic(
    application: Application, cloud_run: CloudRun
) -> None:
    old = await application.deploy(OLD)
    new = application.commit(NEW, manifest(V2), running=old)
    assert (await new.run("CLOUDRUN_SYNC")).status is SUCCESS
    set_piped(cloud_run, RUNNING, "another")
    assert (await new.run("CLOUDRUN_ROLLBACK", is_rollback=True)).status is SUCCESS
    assert cloud_run.traffic("web") == {RUNNING: 100}
    assert any("Only the traffic is changed" in line for line in application.host.lines)


async def test_a_rollback_restores_the_traffic_although_the_new_revision_failed(
    application: Application, cloud_run: CloudRun
) -> None:
    old = await application.deploy(OLD)
    cloud_run.broken_images[V2] = CRASHES
    new = application.commit(NEW, manifest(V2), running=old)
    assert (await new.run("CLOUDRUN_SYNC")).status is FAILURE
    set_piped(cloud_run, RUNNING, "another")
    result = await new.run("CLOUDRUN_ROLLBACK", is_rollback=True)
    # The service is not ready, because of the template of the revision that failed.
    assert (result.status, result.message) == (SUCCESS, f"Revision {RUNNING} gets all traffic")
    assert cloud_run.traffic("web") == {RUNNING: 100}


@pytest.mark.parametrize("percent", [50, 100])
async def test_a_revision_of_another_piped_is_promoted(
    application: Application, cloud_run: CloudRun, percent: int
) -> None:
    old = await application.deploy(OLD)
    new = application.commit(NEW, manifest(V2), running=old)
    assert (await new.run("CLOUDRUN_PROMOTE", {"percent": 10})).status is SUCCESS
    set_piped(cloud_run, CANARY, "another")
    result = await new.run("CLOUDRUN_PROMOTE", {"percent": percent}, index=1)
    assert result.status is SUCCESS, result.message
    shares = {CANARY: percent, RUNNING: 100 - percent}
    assert cloud_run.traffic("web") == {name: share for name, share in shares.items() if share}
    assert len(cloud_run.revisions) == 2


async def test_a_failed_revision_of_another_piped_is_not_promoted(
    application: Application, cloud_run: CloudRun
) -> None:
    old = await application.deploy(OLD)
    cloud_run.broken_images[V2] = CRASHES
    new = application.commit(NEW, manifest(V2), running=old)
    assert (await new.run("CLOUDRUN_PROMOTE", {"percent": 10})).status is FAILURE
    set_piped(cloud_run, CANARY, "another")
    result = await new.run("CLOUDRUN_PROMOTE", {"percent": 10})
    assert result.status is FAILURE
    assert result.message.startswith(f"revision {CANARY} is not ready: {CRASHES}")
    assert cloud_run.traffic("web") == {RUNNING: 100}


async def test_a_deleted_revision_is_created_again_by_a_rollback(
    application: Application, cloud_run: CloudRun
) -> None:
    old = await application.deploy(OLD)
    new = application.commit(NEW, manifest(V2), running=old)
    assert (await new.run("CLOUDRUN_SYNC")).status is SUCCESS
    del cloud_run.revisions[RUNNING]
    assert (await new.run("CLOUDRUN_ROLLBACK", is_rollback=True)).status is SUCCESS
    assert cloud_run.traffic("web") == {RUNNING: 100}


async def test_a_revision_of_unknown_origin_shares_the_traffic(
    application: Application, cloud_run: CloudRun
) -> None:
    # The service was deployed by other means before.
    await application.deploy(OLD)
    revision = cloud_run.revisions.pop(RUNNING)
    revision.body["metadata"]["labels"].pop("pipecd-dev-commit-hash")
    cloud_run.revisions["web-00007-xyz"] = revision
    cloud_run.services["web"].body["spec"]["traffic"][0]["revisionName"] = "web-00007-xyz"
    new = application.commit(NEW, manifest(V2), running=application.commit(OLD))
    assert (await new.run("CLOUDRUN_PROMOTE", {"percent": 25})).status is SUCCESS
    assert cloud_run.traffic("web") == {CANARY: 25, "web-00007-xyz": 75}


async def test_a_change_by_others_is_read_again(
    application: Application, cloud_run: CloudRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    await application.deploy(OLD)
    replace = cloud_run._replace

    def after_another_change(name: str, body: dict[str, Any]) -> Any:
        monkeypatch.setattr(cloud_run, "_replace", replace)
        cloud_run._touch(cloud_run.services[name])
        return replace(name, body)

    monkeypatch.setattr(cloud_run, "_replace", after_another_change)
    result = await application.commit(NEW, manifest(V2)).run("CLOUDRUN_SYNC")
    assert result.status is SUCCESS
    assert cloud_run.traffic("web") == {CANARY: 100}
    assert any("was changed meanwhile" in line for line in application.host.lines)


async def test_a_service_that_others_create_meanwhile_is_replaced(
    application: Application, cloud_run: CloudRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = cloud_run._create

    def after_another_creation(body: dict[str, Any]) -> Any:
        create(body)
        return create(body)

    monkeypatch.setattr(cloud_run, "_create", after_another_creation)
    assert (await application.commit(OLD).run("CLOUDRUN_SYNC")).status is SUCCESS
    assert cloud_run.traffic("web") == {RUNNING: 100}


async def test_a_service_that_changes_all_the_time_fails_the_stage(
    application: Application, cloud_run: CloudRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    await application.deploy(OLD)

    def refuse(name: str, body: dict[str, Any]) -> Any:
        raise Refused(409, "ABORTED", f"Conflict for resource '{name}'.")

    monkeypatch.setattr(cloud_run, "_replace", refuse)
    result = await application.commit(NEW, manifest(V2)).run("CLOUDRUN_SYNC")
    assert result.status is FAILURE
    assert result.message.startswith("others change service web all the time")


async def test_a_wait_ends_with_the_last_reason(
    application: Application, cloud_run: CloudRun
) -> None:
    application.plugin._polling = Polling(within=0.05, backoff=Backoff(0.01, 0.01))
    cloud_run.seconds = 60
    result = await application.commit(OLD).run("CLOUDRUN_SYNC")
    assert result.status is FAILURE
    assert f"revision {RUNNING} was not ready within" in result.message
    assert "Deploying Revision" in result.message


@pytest.mark.parametrize(
    ("service", "error"),
    [
        ("kind: Deployment", "service.yaml must be a Service of serving.knative.dev/v1"),
        ("a: 1\n---\nb: 2", "service.yaml must have one document, and it has 2"),
        ("a: [", "service.yaml:2:1: not valid YAML"),
        ({**manifest(), "metadata": {}}, "metadata.name must be set"),
        (manifest(""), "spec.template.spec.containers.0.image must be set"),
        ({**manifest(), "spec": {}}, "containers must have a container"),
        (manifest(prots=[]), 'Unknown name "prots"'),
        (
            {**manifest(), "metadata": {"name": "web", "namespace": "other"}},
            "must be the project ID",
        ),
    ],
)
async def test_a_manifest_with_mistakes(application: Application, service: Any, error: str) -> None:
    result = await application.commit(OLD, service).run("CLOUDRUN_SYNC")
    assert result.status is FAILURE
    assert error in result.message


async def test_numbers_and_booleans_are_sent_as_the_texts_that_the_api_requires(
    application: Application, cloud_run: CloudRun
) -> None:
    container: dict[str, Any] = {
        "env": [{"name": "A", "value": 1}, {"name": "B", "value": True}],
        "args": ["serve", 8080],
        "resources": {"limits": {"cpu": 1}},
    }
    await application.deploy(OLD, manifest(**container))
    [sent] = cloud_run.services["web"].body["spec"]["template"]["spec"]["containers"]
    assert [each["value"] for each in sent["env"]] == ["1", "true"]
    assert sent["args"] == ["serve", "8080"]
    assert sent["resources"] == {"limits": {"cpu": "1"}}


def throttled(**headers: str) -> Answer:
    body = b'{"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "message": "Quota exceeded"}}'
    return Answer(429, body, headers)


async def test_a_throttled_or_broken_api_is_asked_again(
    application: Application, cloud_run: CloudRun
) -> None:
    cloud_run.faults += [throttled(), Answer(503, b"upstream error"), None, throttled()]
    assert (await application.commit(OLD).run("CLOUDRUN_SYNC")).status is SUCCESS


async def test_a_quota_that_stays_exceeded_is_named(
    application: Application, cloud_run: CloudRun
) -> None:
    cloud_run.faults += [throttled()] * 20
    result = await application.commit(OLD).run("CLOUDRUN_SYNC")
    assert result.status is FAILURE
    assert result.message == (
        f"Cloud Run throttles the requests for project {PROJECT}: Quota exceeded; "
        "it was retried; raise the quota of the Cloud Run Admin API"
    )


async def test_a_refused_token_is_renewed(application: Application, cloud_run: CloudRun) -> None:
    old = await application.deploy(OLD)
    cloud_run.expire_tokens()
    assert (await old.run("CLOUDRUN_SYNC")).status is SUCCESS


async def test_expired_credentials_are_named(application: Application, cloud_run: CloudRun) -> None:
    refused = Answer(401, b'{"error": {"code": 401, "message": "the key was deleted"}}')
    cloud_run.faults += [refused, refused]
    result = await application.commit(OLD).run("CLOUDRUN_SYNC")
    assert result.status is FAILURE
    assert result.message == (
        "Google Cloud does not accept the credentials of deploy target dev: the key was deleted; "
        "renew credentialsFile of the deploy target, or the service account of piped"
    )


async def test_a_missing_permission_is_named(application: Application) -> None:
    application.target = {"project": "another"}
    result = await application.commit(OLD).run("CLOUDRUN_SYNC")
    assert result.status is FAILURE
    assert "piped may not access service web of project another: Permission" in result.message
    assert "grant its service account the roles Cloud Run Admin" in result.message


@pytest.mark.parametrize(
    ("content", "error"),
    [(None, "No such file"), ("{}", "has no key"), ("x", "has no key"), ("[]", "has no key")],
)
async def test_credentials_that_cannot_be_read(
    application: Application, content: str | None, error: str
) -> None:
    file = application.directory / "key.json"
    if content is not None:
        file.write_text(content)
    application.target = {"credentialsFile": str(file)}
    result = await application.commit(OLD).run("CLOUDRUN_SYNC")
    assert result.status is FAILURE
    assert error in result.message


async def test_the_default_credentials_are_those_of_the_environment(
    application: Application, cloud_run: CloudRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(cloud_run.account))
    application.target = {"credentialsFile": ""}
    assert (await application.commit(OLD).run("CLOUDRUN_SYNC")).status is SUCCESS


async def test_a_rejected_key_is_named(application: Application, cloud_run: CloudRun) -> None:
    key = json.loads(cloud_run.account.read_text())
    file = application.directory / "key.json"
    file.write_text(json.dumps({**key, "token_uri": f"{cloud_run.address}/refused"}))
    application.target = {"credentialsFile": str(file)}
    result = await application.commit(OLD).run("CLOUDRUN_SYNC")
    assert result.status is FAILURE
    assert "Google Cloud rejected the credentials" in result.message
    assert key["private_key"].splitlines()[1] not in result.message


async def test_an_endpoint_that_cannot_be_reached_is_named(application: Application) -> None:
    application.target = {"endpoint": "http://127.0.0.1:1"}
    result = await application.commit(OLD).run("CLOUDRUN_SYNC")
    assert result.status is FAILURE
    assert "127.0.0.1 cannot be reached" in result.message
    assert "check region and endpoint of deploy target dev" in result.message
