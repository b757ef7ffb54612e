# SPDX-License-Identifier: Apache-2.0
"""Defaults of control plane files."""

from operator import attrgetter

import pytest

from pipecd.config.controlplane import ControlPlaneSpec
from pipecd.config.read import read_control_plane
from pipecd.config.units import Duration

SMALLEST = """
apiVersion: pipecd.dev/v1beta1
kind: ControlPlane
spec:
  datastore: {type: SQLITE, config: {path: /db}}
  filestore: {type: LOCAL, config: {path: /files}}
"""


def read(spec: str = "") -> ControlPlaneSpec:
    return read_control_plane(SMALLEST + spec, file="cp.yaml")


DEFAULTS = [
    ("address", ""),
    ("state_key", ""),
    ("cache.ttl", Duration(300)),
    ("insight_collector.application.enabled", True),
    ("insight_collector.application.schedule", "0 * * * *"),
    ("insight_collector.deployment.enabled", True),
    ("insight_collector.deployment.schedule", "30 * * * *"),
    ("insight_collector.deployment.chunk_max_count", 1000),
    ("projects", ()),
    ("shared_sso_configs", ()),
    ("datastore.config.url", ""),
    ("datastore.config.database", ""),
    ("datastore.config.username_file", ""),
    ("datastore.config.password_file", ""),
    ("filestore.config.bucket", ""),
    ("filestore.config.region", ""),
    ("filestore.config.credentials_file", ""),
    ("filestore.config.profile", ""),
    ("filestore.config.role_arn", ""),
    ("filestore.config.token_file", ""),
    ("filestore.config.endpoint", ""),
    ("filestore.config.access_key_file", ""),
    ("filestore.config.secret_key_file", ""),
    ("filestore.config.auto_create_bucket", False),
]


@pytest.mark.parametrize(("attribute", "expected"), DEFAULTS, ids=[name for name, _ in DEFAULTS])
def test_a_file_with_only_the_required_keys_has(attribute: str, expected: object) -> None:
    assert attrgetter(attribute)(read()) == expected


ZEROES = [
    pytest.param("cache: {ttl: 0}", "cache.ttl", Duration(300), id="no time to live"),
    pytest.param(
        "insightCollector: {deployment: {chunkMaxCount: 0}}",
        "insight_collector.deployment.chunk_max_count",
        1000,
        id="chunks of nothing",
    ),
    pytest.param(
        "insightCollector: {application: {schedule: ''}}",
        "insight_collector.application.schedule",
        "0 * * * *",
        id="an empty schedule",
    ),
]


@pytest.mark.parametrize(("line", "attribute", "expected"), ZEROES)
def test_a_zero_value_means_the_default(line: str, attribute: str, expected: object) -> None:
    assert attrgetter(attribute)(read(f"  {line}\n")) == expected


def test_an_insight_collector_can_be_disabled() -> None:
    spec = read("  insightCollector: {application: {enabled: false}}\n")
    assert spec.insight_collector.application.enabled is False


def test_a_project_has_no_static_admin_by_default() -> None:
    [project] = read("  projects: [{id: a}]\n").projects
    assert (project.desc, project.static_admin.username, project.static_admin.password_hash) == (
        "",
        "",
        "",
    )


SSO = "  sharedSSOConfigs: [{name: a, provider: %s, %s}]\n"


def test_a_session_lasts_a_week_by_default() -> None:
    assert read(SSO % ("GITHUB", "sessionTtl: 0")).shared_sso_configs[0].session_ttl == 168
    assert read(SSO % ("GITHUB", "sessionTtl: 24")).shared_sso_configs[0].session_ttl == 24
    assert read(SSO % ("GITHUB", "sessionTtl: '24'")).shared_sso_configs[0].session_ttl == 24


GITHUB = ("clientId", "clientSecret", "baseUrl", "uploadUrl", "proxyUrl")
OIDC = (
    "clientId",
    "clientSecret",
    "issuer",
    "redirectUri",
    "authorizationEndpoint",
    "tokenEndpoint",
    "userInfoEndpoint",
    "proxyUrl",
    "rolesClaimKey",
    "usernameClaimKey",
    "avatarUrlClaimKey",
)


@pytest.mark.parametrize(
    ("provider", "key"),
    [("github", key) for key in GITHUB] + [("oidc", key) for key in OIDC],
)
def test_sso_keys_may_be_camel_or_snake_case(provider: str, key: str) -> None:
    snake = "".join(f"_{c.lower()}" if c.isupper() else c for c in key)
    for spelling in (key, snake):
        line = SSO % (provider.upper(), f"{provider}: {{{spelling}: value}}")
        [config] = read(line).shared_sso_configs
        assert getattr(getattr(config, provider), snake) == "value"


def test_scopes_are_a_list() -> None:
    [config] = read(SSO % ("OIDC", "oidc: {scopes: [openid]}")).shared_sso_configs
    assert config.oidc is not None
    assert config.oidc.scopes == ("openid",)
    assert config.github is None


def test_the_repr_shows_no_secret() -> None:
    spec = read("  stateKey: s3cret\n" + SSO % ("OIDC", "oidc: {clientSecret: s3cret}"))
    assert "s3cret" not in repr(spec)
