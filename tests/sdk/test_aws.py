# SPDX-License-Identifier: Apache-2.0
"""AWS for plugins: credentials, errors with cause and remedy, throttling, pages and waits."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pipecd.config.decode import decode_plain
from pipecd.model.errors import Denied, PipecdError, Unavailable, UserMistake
from pipecd.sdk import Backoff
from pipecd.sdk.aws import (
    AwsAccount,
    AwsAccounts,
    AwsMissing,
    AwsRejection,
    AwsTarget,
    Polling,
    ownership_tags,
)
from servers.amazon import REGION, Amazon
from servers.amazon_ecs import task_definition

QUICK = Backoff(first=0.001, longest=0.001)


def target(amazon: Amazon, **settings: str) -> AwsTarget:
    return decode_plain(
        {"region": REGION, "endpoint": amazon.url, **settings}, AwsTarget, what="target"
    )


@pytest.fixture
async def accounts() -> AsyncIterator[AwsAccounts]:
    opened = AwsAccounts()
    yield opened
    await opened.close()


@pytest.fixture
def account(accounts: AwsAccounts, amazon: Amazon) -> AwsAccount:
    return accounts.account("dev", target(amazon))


async def list_clusters(account: AwsAccount) -> dict[str, Any]:
    return await account.call("ecs", "list_clusters", about="the clusters")


async def test_a_target_has_one_account_until_its_settings_change(
    accounts: AwsAccounts, amazon: Amazon
) -> None:
    first = accounts.account("dev", target(amazon))
    assert accounts.account("dev", target(amazon)) is first
    assert accounts.account("dev", target(amazon, profile="p")) is not first


async def test_all_pages_are_read(account: AwsAccount, amazon: Amazon) -> None:
    ecs = amazon.client("ecs")
    ecs.create_cluster(clusterName="prod")
    document = json.loads(task_definition("nginx:1")) | {"cpu": "256", "memory": "512"}
    ecs.register_task_definition(**document)
    ecs.create_service(cluster="prod", serviceName="web", taskDefinition="web", desiredCount=3)
    tasks = await account.collect(
        "ecs",
        "list_tasks",
        "taskArns",
        about="the tasks",
        cluster="prod",
        serviceName="web",
        PaginationConfig={"PageSize": 2},
    )
    assert len(set(tasks)) == 3
    assert amazon.operations("ListTasks") == ["ListTasks"] * 2


async def test_a_throttled_request_is_repeated(account: AwsAccount, amazon: Amazon) -> None:
    amazon.refuse("ListClusters", "ThrottlingException", times=1)
    assert (await list_clusters(account))["clusterArns"] == []
    assert amazon.operations() == ["ListClusters", "ListClusters"]


ERRORS: dict[str, tuple[str, int, type[PipecdError], str]] = {
    "expired credentials": (
        "ExpiredTokenException",
        400,
        Denied,
        "the AWS credentials have expired, so there is no access to the clusters: .*; renew the credentials",
    ),
    "unknown credentials": (
        "UnrecognizedClientException",
        400,
        Denied,
        "AWS does not accept the credentials for the clusters: .*; renew the credentials",
    ),
    "a missing permission": (
        "AccessDeniedException",
        400,
        Denied,
        "AWS denies access to the clusters: .*; check the credentials and the policies",
    ),
    "something that does not exist": (
        "ClusterNotFoundException",
        400,
        AwsMissing,
        "the clusters does not exist",
    ),
    "anything else": (
        "InvalidParameterException",
        400,
        AwsRejection,
        "AWS rejected the request for the clusters: because",
    ),
}


@pytest.mark.parametrize(("code", "status", "kind", "text"), ERRORS.values(), ids=ERRORS)
async def test_the_error_of(
    account: AwsAccount,
    amazon: Amazon,
    code: str,
    status: int,
    kind: type[PipecdError],
    text: str,
) -> None:
    amazon.refuse("ListClusters", code, "because", status=status)
    with pytest.raises(kind, match=text) as raised:
        await list_clusters(account)
    assert amazon.operations() == ["ListClusters"]
    if isinstance(raised.value, AwsMissing | AwsRejection):
        assert raised.value.code == code


async def test_parameters_that_aws_does_not_know_are_the_mistake_of_the_user(
    account: AwsAccount,
) -> None:
    with pytest.raises(UserMistake, match='Unknown parameter in input: "color"'):
        await account.call("ecs", "list_clusters", about="the clusters", color="red")


async def test_credentials_of_a_profile(
    accounts: AwsAccounts, amazon: Amazon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in amazon.environment:
        if name != "AWS_EC2_METADATA_DISABLED":
            monkeypatch.delenv(name)
    file = tmp_path / "credentials"
    file.write_text("[dev]\naws_access_key_id = a\naws_secret_access_key = b\n")
    settings = target(amazon, profile="dev", credentialsFile=str(file))
    assert await list_clusters(accounts.account("dev", settings))
    other = target(amazon, profile="other", credentialsFile=str(file))
    with pytest.raises(
        UserMistake, match=r"profile \(other\) could not be found; check the region"
    ):
        await list_clusters(accounts.account("dev", other))
    with pytest.raises(UserMistake, match=r"no AWS credentials .*; give the machine or pod a role"):
        await list_clusters(accounts.account("none", target(amazon)))


async def test_a_role_with_a_token_file(
    accounts: AwsAccounts, amazon: Amazon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in amazon.environment:
        monkeypatch.delenv(name)
    # The token service has an address of its own.
    monkeypatch.setenv("AWS_ENDPOINT_URL", amazon.url)
    token = tmp_path / "token"
    role = {"roleARN": "arn:aws:iam::123456789012:role/piped", "tokenFile": str(token)}
    account = accounts.account("dev", target(amazon, **role))
    with pytest.raises(
        UserMistake, match=r"deploy target dev cannot be read: .*; check credentials"
    ):
        await list_clusters(account)
    token.write_text("token")
    assert await list_clusters(account)


async def test_polling_ends_with_the_first_result() -> None:
    results = iter([None, Unavailable("throttled"), "done", "never"])

    async def check() -> str | None:
        result = next(results)
        if isinstance(result, Exception):
            raise result
        return result

    assert await Polling(within=60, backoff=QUICK).until(check) == "done"


async def test_polling_ends_in_time() -> None:
    async def check() -> None:
        await asyncio.sleep(0)

    assert await Polling(within=0.01, backoff=QUICK).until(check) is None

    async def fail() -> None:
        raise Unavailable("throttled")

    with pytest.raises(Unavailable, match="throttled"):
        await Polling(within=0.01, backoff=QUICK).until(fail)


def test_tags_mark_the_owner() -> None:
    assert ownership_tags(piped_id="p", application_id="a", commit="c") == {
        "pipecd-dev-managed-by": "piped",
        "pipecd-dev-piped": "p",
        "pipecd-dev-application": "a",
        "pipecd-dev-commit-hash": "c",
    }


def test_a_target_requires_a_region() -> None:
    with pytest.raises(UserMistake, match="region must be set"):
        decode_plain({}, AwsTarget, what="target")


def write_credentials(file: Path, key: str) -> None:
    file.write_text(f"[dev]\naws_access_key_id = {key}\naws_secret_access_key = secret\n")


@pytest.mark.parametrize("code", ["ExpiredTokenException", "UnrecognizedClientException"])
async def test_a_renewed_credentials_file_is_read_again(
    accounts: AwsAccounts,
    amazon: Amazon,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    code: str,
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    file = tmp_path / "credentials"
    write_credentials(file, "old")
    account = accounts.account("dev", target(amazon, profile="dev", credentialsFile=str(file)))
    assert await list_clusters(account)
    amazon.refuse_key("old", code)
    with pytest.raises(Denied, match="renew the credentials"):
        await list_clusters(account)
    write_credentials(file, "new")
    assert await list_clusters(account)


async def test_a_profile_that_is_added_later_is_found(
    accounts: AwsAccounts, amazon: Amazon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    file = tmp_path / "credentials"
    account = accounts.account("dev", target(amazon, profile="dev", credentialsFile=str(file)))
    with pytest.raises(UserMistake):
        await list_clusters(account)
    write_credentials(file, "new")
    assert await list_clusters(account)


async def test_a_target_that_does_not_answer_blocks_no_other(
    accounts: AwsAccounts, amazon: Amazon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipecd.sdk.aws._READ_SECONDS", 5)
    monkeypatch.setattr("pipecd.sdk.aws._MAX_ATTEMPTS", 1)
    with socket.create_server(("127.0.0.1", 0), backlog=100) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        unreachable = accounts.account("silent", target(amazon, endpoint=endpoint))
        waiting = [asyncio.create_task(list_clusters(unreachable)) for _ in range(40)]
        await asyncio.sleep(0.1)
        reachable = accounts.account("dev", target(amazon))
        assert await list_clusters(reachable)
        assert not any(task.done() for task in waiting)
    await asyncio.gather(*waiting, return_exceptions=True)
