# SPDX-License-Identifier: Apache-2.0
"""Projects named in the file, and the ways to sign in that several projects share."""

from typing import Annotated

from pydantic import BeforeValidator, Field, field_validator
from pydantic.alias_generators import to_camel

from pipecd.config.rule import must_be_set
from pipecd.config.spec import Spec
from pipecd.config.yamltree import Entry, List, Map, Node, Scalar

PROVIDERS = ("GITHUB", "OIDC", "GOOGLE")
DEFAULT_SESSION_HOURS = 168


class StaticAdminSpec(Spec):
    """The administrator who signs in with a password; the hash is bcrypt."""

    username: str = ""
    password_hash: Annotated[str, Field(repr=False)] = ""


class ProjectSpec(Spec):
    """A project that exists without a row in the datastore, for a try-out."""

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


def _whole_number(value: object) -> object:
    # Protobuf's JSON writes 64-bit numbers as text, so both spellings are in use.
    return int(value) if isinstance(value, str) and value.isdecimal() else value


def camel_cased(node: Node) -> Node:
    """Return a shared sign-in with its keys in camelCase; protobuf's JSON allows snake_case."""
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
    """A sign-in that projects refer to by name; `sessionTtl` is in hours."""

    name: Annotated[
        str, Field(validate_default=True), must_be_set("name field in SharedSSOConfig")
    ] = ""
    provider: str = Field(default="", validate_default=True)
    session_ttl: Annotated[int, BeforeValidator(_whole_number), Field(ge=0)] = DEFAULT_SESSION_HOURS
    github: GitHubSpec | None = None
    oidc: OidcSpec | None = None

    @field_validator("provider")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in PROVIDERS:
            raise ValueError(f"unsupported provider {value}, write one of {', '.join(PROVIDERS)}")
        return value
