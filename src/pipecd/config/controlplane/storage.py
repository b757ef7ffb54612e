# SPDX-License-Identifier: Apache-2.0
"""Where a control plane keeps its records and its files."""

from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from pipecd.config.rule import refuse
from pipecd.config.spec import Spec

DATASTORES = ("SQLITE", "MYSQL", "POSTGRESQL")
FILESTORES = ("LOCAL", "S3", "GCS", "MINIO")


class DatastoreConfig(Spec):
    """The settings of a datastore; which ones count is decided by its type."""

    tolerant = True

    path: str = ""
    # A MySQL address may hold a password.
    url: Annotated[str, Field(repr=False)] = ""
    database: str = ""
    username_file: str = ""
    password_file: str = ""


class DatastoreSpec(Spec):
    """The database: a file of SQLite, a MySQL or a PostgreSQL server."""

    tolerant = True

    type: str = Field(default="", validate_default=True)
    config: DatastoreConfig = DatastoreConfig()

    @field_validator("type")
    @classmethod
    def _known(cls, value: str) -> str:
        if value == "FIRESTORE":
            raise ValueError(
                "FIRESTORE is not supported by this control plane, "
                f"write one of {', '.join(DATASTORES)}"
            )
        if value not in DATASTORES:
            raise ValueError(
                f'unknown datastore type "{value}", write one of {", ".join(DATASTORES)}'
            )
        return value

    @model_validator(mode="after")
    def _complete(self) -> Self:
        c = self.config
        server = self.type in ("MYSQL", "POSTGRESQL")
        refuse(
            self,
            (self.type == "SQLITE" and not c.path, ("config", "path"), "path is required field"),
            (server and not c.url, ("config", "url"), "url is required field"),
            (
                server and c.url and not c.database and not _names_a_database(self.type, c.url),
                ("config", "database"),
                "database is not set",
            ),
        )
        return self


def _names_a_database(type: str, url: str) -> bool:
    # A MySQL address ends in /DATABASE; that of PostgreSQL is a URL with the same ending.
    return bool(urlsplit(url).path.strip("/")) if type == "POSTGRESQL" else "/" in url


class FilestoreConfig(Spec):
    """The settings of a filestore; which ones count is decided by its type."""

    tolerant = True

    path: str = ""
    bucket: str = ""
    region: str = ""
    credentials_file: str = ""
    profile: str = ""
    role_arn: Annotated[str, Field(alias="roleARN")] = ""
    token_file: str = ""
    endpoint: str = ""
    access_key_file: str = ""
    secret_key_file: str = ""
    auto_create_bucket: bool = False


class FilestoreSpec(Spec):
    """The place of stage logs, live states and insights: a directory or a bucket."""

    tolerant = True

    type: str = Field(default="", validate_default=True)
    config: FilestoreConfig = FilestoreConfig()

    @field_validator("type")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in FILESTORES:
            raise ValueError(
                f'unknown filestore type "{value}", write one of {", ".join(FILESTORES)}'
            )
        return value

    @model_validator(mode="after")
    def _complete(self) -> Self:
        c = self.config
        needed = {
            "LOCAL": {"path": c.path},
            "S3": {"region": c.region, "bucket": c.bucket},
            "GCS": {"bucket": c.bucket},
            "MINIO": {
                "endpoint": c.endpoint,
                "bucket": c.bucket,
                "accessKeyFile": c.access_key_file,
                "secretKeyFile": c.secret_key_file,
            },
        }[self.type]
        refuse(
            self,
            *(
                (not value, ("config", key), f"{key} is required field")
                for key, value in needed.items()
            ),
        )
        return self
