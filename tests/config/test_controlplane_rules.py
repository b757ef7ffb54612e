# SPDX-License-Identifier: Apache-2.0
"""Rules of control plane files and their error texts."""

import pytest

from pipecd.config.controlplane import ControlPlaneSpec
from pipecd.config.read import read_control_plane
from pipecd.config.report import ConfigMistake

HEAD = "apiVersion: pipecd.dev/v1beta1\nkind: ControlPlane\nspec:\n"
SQLITE = "datastore: {type: SQLITE, config: {path: /db}}"
LOCAL = "filestore: {type: LOCAL, config: {path: /files}}"


def file_of(*lines: str) -> str:
    given = {line.partition(":")[0] for line in lines}
    base = [line for line in (SQLITE, LOCAL) if line.partition(":")[0] not in given]
    return HEAD + "".join(f"  {line}\n" for line in (*base, *lines))


def read(*lines: str) -> ControlPlaneSpec:
    return read_control_plane(file_of(*lines), file="cp.yaml")


def mistakes(text: str) -> list[str]:
    with pytest.raises(ConfigMistake) as caught:
        read_control_plane(text, file="cp.yaml")
    return [f"{m.path}: {m.what}" for m in caught.value.report.mistakes]


def datastore(type_: str, config: str) -> str:
    return f"datastore: {{type: {type_}, config: {{{config}}}}}"


def filestore(type_: str, config: str) -> str:
    return f"filestore: {{type: {type_}, config: {{{config}}}}}"


def schedule(text: str) -> str:
    return f"insightCollector: {{deployment: {{schedule: '{text}'}}}}"


ACCEPTED = [
    pytest.param(datastore("MYSQL", "url: 'root:pw@tcp(h:3306)/db'"), id="a whole MySQL address"),
    pytest.param(datastore("MYSQL", "url: 'h:3306', database: db"), id="MySQL and a database"),
    pytest.param(
        datastore("MYSQL", "url: 'h:3306', database: db, usernameFile: u, passwordFile: p"),
        id="MySQL with files for user and password",
    ),
    pytest.param(datastore("POSTGRESQL", "url: 'postgresql://h/db'"), id="a PostgreSQL address"),
    pytest.param(datastore("POSTGRESQL", "url: 'h:5432', database: db"), id="PostgreSQL in parts"),
    pytest.param(datastore("SQLITE", "path: a, foo: b"), id="an unknown key of a datastore"),
    pytest.param(filestore("S3", "bucket: b, region: r"), id="S3"),
    pytest.param(filestore("GCS", "bucket: b"), id="GCS"),
    pytest.param(
        filestore("MINIO", "endpoint: 'http://m', bucket: b, accessKeyFile: a, secretKeyFile: s"),
        id="MinIO",
    ),
    pytest.param(filestore("LOCAL", "path: a, foo: b"), id="an unknown key of a filestore"),
    pytest.param(schedule("*/15 0-6,22 1,15 jan-mar MON-FRI"), id="a rich schedule"),
    pytest.param(schedule("0 0 ? * 0"), id="a schedule with a question mark"),
    pytest.param(schedule("@hourly"), id="a schedule by name"),
    pytest.param(schedule("@every 1h30m"), id="a schedule by period"),
    pytest.param("STATEKEY: a", id="a key in another case"),
    pytest.param("sharedSSOConfigs: [{name: a, provider: GOOGLE}]", id="SSO with Google"),
    pytest.param(
        "sharedSSOConfigs: [{name: a, provider: OIDC, oidc: {userinfo_endpoint: x}}]",
        id="the spelling of upstream's pages, which upstream itself refuses",
    ),
    pytest.param("cache:", id="null for an object"),
]


@pytest.mark.parametrize("line", ACCEPTED)
def test_a_file_is_read_with(line: str) -> None:
    assert isinstance(read(line), ControlPlaneSpec)


DATASTORE, FILESTORE = "spec.datastore", "spec.filestore"
SCHEDULE = "spec.insightCollector.deployment.schedule"
STORES = "write one of SQLITE, MYSQL, POSTGRESQL"
REFUSED = [
    pytest.param("foo: 1", "spec.foo: unknown field", id="an unknown key"),
    pytest.param(
        "cache: {tttl: 1s}",
        'spec.cache.tttl: unknown field, did you mean "ttl"?',
        id="an unknown key of the cache",
    ),
    pytest.param(
        "projects: [{id: a, static: {}}]",
        'spec.projects[0].static: unknown field, did you mean "staticAdmin"?',
        id="an unknown key of a project",
    ),
    pytest.param(
        "sharedSSOConfigs: [{name: a, provider: OIDC, oidc: {domain: x}}]",
        "spec.sharedSSOConfigs[0].oidc.domain: unknown field",
        id="an unknown key of an SSO config",
    ),
    pytest.param(
        datastore("FIRESTORE", "project: p"),
        f"{DATASTORE}.type: FIRESTORE is not supported by this control plane, {STORES}",
        id="Firestore",
    ),
    pytest.param(
        datastore("ORACLE", ""),
        f'{DATASTORE}.type: unknown datastore type "ORACLE", {STORES}',
        id="a datastore that does not exist",
    ),
    pytest.param(
        "datastore: {}",
        f'{DATASTORE}.type: unknown datastore type "", {STORES}',
        id="a datastore without a type",
    ),
    pytest.param("datastore:", f"{DATASTORE}: must be set", id="no datastore"),
    pytest.param("filestore:", f"{FILESTORE}: must be set", id="no filestore"),
    pytest.param(
        datastore("SQLITE", ""), f"{DATASTORE}.config.path: path is required field", id="SQLite"
    ),
    pytest.param(
        datastore("MYSQL", ""), f"{DATASTORE}.config.url: url is required field", id="no address"
    ),
    pytest.param(
        datastore("MYSQL", "url: 'h:3306'"),
        f"{DATASTORE}.config.database: database is not set",
        id="MySQL without a database",
    ),
    pytest.param(
        datastore("POSTGRESQL", "url: 'postgresql://h:5432'"),
        f"{DATASTORE}.config.database: database is not set",
        id="PostgreSQL without a database",
    ),
    pytest.param(
        filestore("FTP", ""),
        f'{FILESTORE}.type: unknown filestore type "FTP", write one of LOCAL, S3, GCS, MINIO',
        id="a filestore that does not exist",
    ),
    pytest.param(
        filestore("S3", "bucket: b"),
        f"{FILESTORE}.config.region: region is required field",
        id="S3 without a region",
    ),
    pytest.param(
        filestore("S3", "region: b"),
        f"{FILESTORE}.config.bucket: bucket is required field",
        id="S3 without a bucket",
    ),
    pytest.param(
        filestore("GCS", ""),
        f"{FILESTORE}.config.bucket: bucket is required field",
        id="GCS without a bucket",
    ),
    pytest.param(
        filestore("LOCAL", ""),
        f"{FILESTORE}.config.path: path is required field",
        id="files without a directory",
    ),
    *(
        pytest.param(
            filestore(
                "MINIO",
                ", ".join(
                    f"{key}: x"
                    for key in ("endpoint", "bucket", "accessKeyFile", "secretKeyFile")
                    if key != missing
                ),
            ),
            f"{FILESTORE}.config.{missing}: {missing} is required field",
            id=f"MinIO without {missing}",
        )
        for missing in ("endpoint", "bucket", "accessKeyFile", "secretKeyFile")
    ),
    pytest.param(
        "cache: {ttl: -1s}", "spec.cache.ttl: must be greater than 0", id="a negative TTL"
    ),
    pytest.param(
        "insightCollector: {deployment: {chunkMaxCount: -1}}",
        "spec.insightCollector.deployment.chunkMaxCount: must be greater than or equal to 0",
        id="a negative chunk size",
    ),
    pytest.param(
        "projects: [{}]", "spec.projects[0].id: id must be set", id="a project without id"
    ),
    pytest.param(
        "projects: [{id: a}, {id: a}]",
        "spec.projects[1].id: two projects have the id a",
        id="a project twice",
    ),
    pytest.param(
        "sharedSSOConfigs: [{provider: OIDC}]",
        "spec.sharedSSOConfigs[0].name: name field in SharedSSOConfig must be set",
        id="an SSO config without a name",
    ),
    pytest.param(
        "sharedSSOConfigs: [{name: a}]",
        "spec.sharedSSOConfigs[0].provider: "
        "unsupported provider , write one of GITHUB, OIDC, GOOGLE",
        id="an SSO config without a provider, on which upstream crashes",
    ),
    pytest.param(
        "sharedSSOConfigs: [{name: a, provider: LDAP}]",
        "spec.sharedSSOConfigs[0].provider: "
        "unsupported provider LDAP, write one of GITHUB, OIDC, GOOGLE",
        id="a provider that does not exist",
    ),
    pytest.param(
        "sharedSSOConfigs: [{name: a, provider: OIDC}, {name: a, provider: OIDC}]",
        "spec.sharedSSOConfigs[1].name: two shared SSO configs are named a",
        id="an SSO config twice",
    ),
    pytest.param(
        "sharedSSOConfigs: [{name: a, provider: OIDC, sessionTtl: soon}]",
        "spec.sharedSSOConfigs[0].sessionTtl: "
        "must be a whole number, not a string, write it without quotes",
        id="a session TTL that is not a number",
    ),
    pytest.param(
        schedule("* * * *"),
        f"{SCHEDULE}: '* * * *' is not a schedule, "
        "write five cron fields such as '0 * * * *', or @every 1h",
        id="a schedule of four fields",
    ),
    pytest.param(
        schedule("60 * * * *"),
        f"{SCHEDULE}: '60' is not a valid minute of '60 * * * *', write a number from 0 to 59",
        id="a minute that does not exist",
    ),
    pytest.param(
        schedule("0 0 0 * *"),
        f"{SCHEDULE}: '0' is not a valid day of month of '0 0 0 * *', write a number from 1 to 31",
        id="a day that does not exist",
    ),
    pytest.param(
        schedule("0 5-3 * * *"),
        f"{SCHEDULE}: '5-3' in the hour of '0 5-3 * * *' ends before it begins",
        id="a reversed range",
    ),
    pytest.param(
        schedule("*/0 * * * *"),
        f"{SCHEDULE}: the step of '*/0' in the minute of '*/0 * * * *' must be 1 or more",
        id="a step of 0",
    ),
    pytest.param(
        schedule("a-b- * * * *"),
        f"{SCHEDULE}: 'a-b-' is not a valid minute of 'a-b- * * * *'",
        id="an invalid field",
    ),
    pytest.param(
        schedule("@every 0s"),
        f"{SCHEDULE}: the period of '@every 0s' must be longer than 0s",
        id="a period of 0s",
    ),
]


@pytest.mark.parametrize(("line", "message"), REFUSED)
def test_a_file_is_refused_with(line: str, message: str) -> None:
    assert mistakes(file_of(line)) == [message]


def test_an_unknown_key_beside_spec_is_refused() -> None:
    assert mistakes(file_of() + "extra: 1\n") == ["extra: unknown field"]


def test_another_kind_is_refused() -> None:
    [message] = mistakes(file_of().replace("ControlPlane", "Piped"))
    assert message.startswith("kind: ")


def test_all_mistakes_are_reported() -> None:
    message = mistakes(file_of("datastore: {type: ORACLE}", "filestore: {type: FTP}", "foo: 1"))
    assert len(message) == 3
