# SPDX-License-Identifier: Apache-2.0
"""The kind ControlPlane: datastore, filestore, cache, single sign-on, insights."""

import re
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator
from pydantic.alias_generators import to_camel

from pipecd.config.spec import Spec, must_be_set, no_duplicates, one_of, refuse
from pipecd.config.units import Duration
from pipecd.config.yaml_tree import Entry, List, Map, Node, Scalar
from pipecd.model.address import parse_networks

MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
DESCRIPTORS = ("@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly")
_PART = re.compile(r"(?:[*?]|(\w+)(?:-(\w+))?)(?:/(\d+))?")
_FIELDS: tuple[tuple[str, int, int, tuple[str, ...]], ...] = (
    ("minute", 0, 59, ()),
    ("hour", 0, 23, ()),
    ("day of month", 1, 31, ()),
    ("month", 1, 12, MONTHS),
    ("day of week", 0, 6, DAYS),
)


def check_schedule(text: str) -> str:
    """Return `text` if it is five cron fields or a descriptor such as `@daily` or `@every 1h`."""
    if text.startswith("@every "):
        if Duration.parse(text.removeprefix("@every ").strip()) <= 0:
            raise ValueError(f"the period of {text!r} must be longer than 0s")
        return text
    if text in DESCRIPTORS:
        return text
    fields = text.split()
    if len(fields) != len(_FIELDS):
        raise ValueError(
            f"{text!r} is not a schedule, write five cron fields such as '0 * * * *', or @every 1h"
        )
    for field, (name, low, high, names) in zip(fields, _FIELDS, strict=True):
        for part in field.split(","):
            _check_part(part, f"{name} of {text!r}", (low, high), names)
    return text


def _check_part(part: str, where: str, bounds: tuple[int, int], names: tuple[str, ...]) -> None:
    match = _PART.fullmatch(part)
    if match is None:
        raise ValueError(f"{part!r} is not a valid {where}")
    low, high = bounds
    ends: list[int] = []
    for end in filter(None, match.group(1, 2)):
        if end.lower() in names:
            ends.append(names.index(end.lower()) + low)
        elif end.isdecimal() and low <= int(end) <= high:
            ends.append(int(end))
        else:
            raise ValueError(f"{end!r} is not a valid {where}, write a number from {low} to {high}")
    if ends != sorted(ends):
        raise ValueError(f"{part!r} in the {where} ends before it begins")
    if match.group(3) and int(match.group(3)) == 0:
        raise ValueError(f"the step of {part!r} in the {where} must be 1 or more")


Schedule = Annotated[str, AfterValidator(check_schedule)]


class ApplicationInsightSpec(Spec):
    """When applications are counted for insights."""

    enabled: bool = True
    schedule: Schedule = "0 * * * *"


class DeploymentInsightSpec(Spec):
    """When deployments are collected for insights, and how many go into one chunk."""

    enabled: bool = True
    schedule: Schedule = "30 * * * *"
    chunk_max_count: int = Field(default=1000, ge=0)


class InsightCollectorSpec(Spec):
    """When insights are collected; times are UTC."""

    application: ApplicationInsightSpec = ApplicationInsightSpec()
    deployment: DeploymentInsightSpec = DeploymentInsightSpec()


PROVIDERS = ("GITHUB", "OIDC", "GOOGLE")
DEFAULT_SESSION_HOURS = 168


class StaticAdminSpec(Spec):
    """The static admin, who signs in with a password; the hash is bcrypt."""

    username: str = ""
    password_hash: Annotated[str, Field(repr=False)] = ""


class ProjectSpec(Spec):
    """A project that is defined in this file instead of the datastore, for trying PipeCD out."""

    id: Annotated[str, Field(validate_default=True), must_be_set("id")] = ""
    desc: str = ""
    static_admin: StaticAdminSpec = StaticAdminSpec()


class GitHubSpec(Spec):
    """Sign-in with GitHub or GitHub Enterprise."""

    client_id: str = ""
    client_secret: Annotated[str, Field(repr=False)] = ""
    base_url: str = ""
    upload_url: str = ""
    proxy_url: str = ""


class OidcSpec(Spec):
    """Sign-in with an OpenID Connect provider."""

    client_id: str = ""
    client_secret: Annotated[str, Field(repr=False)] = ""
    issuer: str = ""
    redirect_uri: str = ""
    authorization_endpoint: str = ""
    token_endpoint: str = ""
    user_info_endpoint: str = ""
    proxy_url: str = ""
    scopes: tuple[str, ...] = ()
    roles_claim_key: str = ""
    username_claim_key: str = ""
    avatar_url_claim_key: str = ""


def _integer(value: object) -> object:
    # The JSON of protobuf has 64-bit numbers as strings, so files have both.
    return int(value) if isinstance(value, str) and value.isdecimal() else value


def camel_cased(node: Node) -> Node:
    """Return a shared SSO configuration with camelCase keys; protobuf's JSON allows snake_case."""
    match node:
        case Map():
            return Map(
                tuple(Entry(to_camel(e.key), camel_cased(e.value), e.mark) for e in node), node.mark
            )
        case List():
            return List(tuple(camel_cased(item) for item in node.items), node.mark)
        case Scalar():
            return node


class SharedSSOConfigSpec(Spec):
    """An SSO configuration that projects refer to by name; `sessionTtl` is in hours."""

    name: Annotated[
        str, Field(validate_default=True), must_be_set("name field in SharedSSOConfig")
    ] = ""
    provider: Annotated[
        str, Field(validate_default=True), one_of(PROVIDERS, "unsupported provider {}")
    ] = ""
    session_ttl: Annotated[int, BeforeValidator(_integer), Field(ge=0)] = DEFAULT_SESSION_HOURS
    github: GitHubSpec | None = None
    oidc: OidcSpec | None = None


DATASTORES = ("SQLITE", "MYSQL", "POSTGRESQL")
FILESTORES = ("LOCAL", "S3", "GCS", "MINIO")


class DatastoreConfig(Spec):
    """The settings of a datastore; its type decides which fields are used."""

    tolerant = True

    path: str = ""
    # The data source name of MySQL may contain a password.
    url: Annotated[str, Field(repr=False)] = ""
    database: str = ""
    username_file: str = ""
    password_file: str = ""


class DatastoreSpec(Spec):
    """The datastore: an SQLite file, a MySQL or a PostgreSQL server."""

    tolerant = True

    type: str = Field(default="", validate_default=True)
    config: DatastoreConfig = DatastoreConfig()

    @field_validator("type")
    @classmethod
    def _is_supported(cls, value: str) -> str:
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
    def _has_settings_of_its_type(self) -> Self:
        c = self.config
        # Both a MySQL data source name and a PostgreSQL URL may end in /DATABASE.
        url_path = urlsplit(c.url).path.strip("/") if self.type == "POSTGRESQL" else "/" in c.url
        server = self.type in ("MYSQL", "POSTGRESQL")
        refuse(
            self,
            (self.type == "SQLITE" and not c.path, ("config", "path"), "path is required field"),
            (server and not c.url, ("config", "url"), "url is required field"),
            (
                server and c.url and not c.database and not url_path,
                ("config", "database"),
                "database is not set",
            ),
        )
        return self


class FilestoreConfig(Spec):
    """The settings of a filestore; its type decides which fields are used."""

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
    """The filestore of stage logs, live states and insights: a directory or a bucket."""

    tolerant = True

    type: Annotated[
        str, Field(validate_default=True), one_of(FILESTORES, 'unknown filestore type "{}"')
    ] = ""
    config: FilestoreConfig = FilestoreConfig()

    @model_validator(mode="after")
    def _has_required_settings(self) -> Self:
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


class CacheSpec(Spec):
    """The TTL of cached values."""

    ttl: Duration = Duration(5 * 60)

    @field_validator("ttl")
    @classmethod
    def _not_negative(cls, value: Duration) -> Duration:
        if value < 0:
            raise ValueError("must be greater than 0")
        return value


class OutboundSpec(Spec):
    """Requests to URLs that the admins of projects set, such as those of single sign-on.

    They go to public addresses, and to those of the networks that are allowed here.
    """

    allowed_networks: tuple[str, ...] = ()

    @field_validator("allowed_networks")
    @classmethod
    def _are_networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        try:
            parse_networks(value)
        except ValueError as e:
            raise ValueError(f"{e}, write addresses or networks such as 10.0.0.0/8") from e
        return value


class ConnectionsSpec(Spec):
    """The most connections that wait for their clients, in all and of one address."""

    max_waiting: int = Field(default=1024, ge=16)
    max_waiting_per_address: int = Field(default=256, ge=4)


class ControlPlaneSpec(Spec):
    """The `spec` of a control plane file; ports and keys are flags."""

    address: str = ""
    state_key: Annotated[str, Field(repr=False)] = ""
    datastore: DatastoreSpec
    filestore: FilestoreSpec
    cache: CacheSpec = CacheSpec()
    insight_collector: InsightCollectorSpec = InsightCollectorSpec()
    outbound: OutboundSpec = OutboundSpec()
    connections: ConnectionsSpec = ConnectionsSpec()
    projects: tuple[ProjectSpec, ...] = ()
    shared_sso_configs: Annotated[
        tuple[SharedSSOConfigSpec, ...], Field(alias="sharedSSOConfigs")
    ] = ()

    @model_validator(mode="after")
    def _unique_names(self) -> Self:
        ids = [project.id for project in self.projects]
        names = [config.name for config in self.shared_sso_configs]
        refuse(
            self,
            *no_duplicates("projects", "id", ids, "two projects have the id {}"),
            *no_duplicates(
                "sharedSSOConfigs", "name", names, "two shared SSO configs are named {}"
            ),
        )
        return self


def camel_cased_sso(spec: Node) -> Node:
    """Return a `spec` whose shared SSO configurations have the camelCase keys of the types."""
    if not isinstance(spec, Map):
        return spec
    entries = (
        e._replace(value=camel_cased(e.value)) if e.key.lower() == "sharedssoconfigs" else e
        for e in spec
    )
    return Map(tuple(entries), spec.mark)
