# SPDX-License-Identifier: Apache-2.0
"""Whatever fails a deployment, the stage says why, and the running version serves afterwards."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from pipecd.sdk import StageStatus
from plugins.cloudrun.testbed import Application, manifest
from servers.cloud_run import CloudRun
from servers.web import Answer

OLD, NEW, V2 = "1111111", "2222222", "gcr.io/shop/web:v2.0"
RUNNING, CANARY = "web-v10-1111111", "web-v20-2222222"
EXPIRED = Answer(401, b'{"error": {"code": 401, "message": "the key was deleted"}}')
THROTTLED = Answer(
    429, b'{"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "message": "Quota exceeded"}}'
)


def answer(*answers: Answer) -> Callable[[CloudRun], object]:
    return lambda cloud_run: cloud_run.faults.extend(answers)


def fail_image(reason: str) -> Callable[[CloudRun], object]:
    return lambda cloud_run: cloud_run.broken_images.update({V2: reason})


@dataclass(frozen=True)
class Failure:
    """What happens before a stage, and what the stage says then."""

    percents: tuple[int, ...]
    happens: Callable[[CloudRun], object]
    cause: str
    remedy: str
    target: dict[str, Any] = field(default_factory=dict[str, Any])


FAILURES = {
    "expired credentials": Failure(
        (10, 100),
        answer(EXPIRED, EXPIRED),
        "Google Cloud does not accept the credentials of deploy target dev: the key was deleted",
        "renew credentialsFile of the deploy target",
    ),
    "a throttled API": Failure(
        (10, 100),
        answer(*[THROTTLED] * 20),
        "Cloud Run throttles the requests",
        "raise the quota of the Cloud Run Admin API",
    ),
    "an image that cannot be pulled": Failure(
        (10,),
        fail_image("Image 'gcr.io/shop/web:v2.0' not found."),
        f"revision {CANARY} is not ready: Image 'gcr.io/shop/web:v2.0' not found.",
        "(log: https://console.cloud.google.com/logs/viewer); correct the service manifest or the "
        "image of its container",
    ),
    "another project": Failure(
        (10,),
        lambda _: None,
        "piped may not access service web of project another",
        "grant its service account the roles Cloud Run Admin",
        {"project": "another"},
    ),
}


@pytest.mark.parametrize("kind", ["Application", "CloudRunApp"])
@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
async def test_the_running_version_serves_after_the_rollback_of(
    application: Application, cloud_run: CloudRun, failure: Failure, kind: str
) -> None:
    application.kind = kind
    old = await application.deploy(OLD)
    new = application.commit(NEW, manifest(V2), running=old)
    *before, last = failure.percents
    for index, percent in enumerate(before):
        done = await new.run("CLOUDRUN_PROMOTE", {"percent": percent}, index=index)
        assert done.status is StageStatus.SUCCESS, done.message
    failure.happens(cloud_run)
    application.target = failure.target
    failing = application.commit(NEW, manifest(V2), running=old)
    failed = await failing.run("CLOUDRUN_PROMOTE", {"percent": last}, index=len(before))
    assert failed.status is StageStatus.FAILURE
    assert failure.cause in failed.message
    assert failure.remedy in failed.message

    cloud_run.faults.clear()
    rolled_back = await new.run("CLOUDRUN_ROLLBACK", is_rollback=True)
    assert rolled_back.status is StageStatus.SUCCESS, rolled_back.message
    assert cloud_run.traffic("web") == {RUNNING: 100}


async def test_traffic_that_somebody_else_edited_is_restored_by_the_rollback(
    application: Application, cloud_run: CloudRun
) -> None:
    old = await application.deploy(OLD)
    new = application.commit(NEW, manifest(V2), running=old)
    promoted = await new.run("CLOUDRUN_PROMOTE", {"percent": 10})
    assert promoted.status is StageStatus.SUCCESS

    def send_all_to_canary(body: dict[str, Any]) -> None:
        body["spec"]["traffic"] = [{"revisionName": CANARY, "percent": 100}]

    cloud_run.edit("web", send_all_to_canary)
    rolled_back = await new.run("CLOUDRUN_ROLLBACK", is_rollback=True)
    assert rolled_back.status is StageStatus.SUCCESS, rolled_back.message
    assert cloud_run.traffic("web") == {RUNNING: 100}
