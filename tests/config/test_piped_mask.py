# SPDX-License-Identifier: Apache-2.0
"""The configuration that piped reports contains no secret."""

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pipecd.config.catalog import load_catalog
from pipecd.config.piped import DeployTargetSpec, PipedSpec, PluginSpec
from pipecd.config.piped_mask import MASK, masked, reported_config
from pipecd.config.read import read_piped

CATALOG = load_catalog()
HEAD = """
apiVersion: pipecd.dev/v1beta1
kind: Piped
spec:
  projectID: shop
  pipedID: p1
  apiAddress: localhost:9080
"""


def read(spec: str, key: str = "pipedKeyFile: /k") -> PipedSpec:
    return read_piped(f"{HEAD}  {key}\n  {spec}\n", file="p.yaml", catalog=CATALOG).spec


def at(tree: Any, path: str) -> Any:
    for part in path.split("."):
        tree = tree[int(part) if part.isdecimal() else part]
    return tree


SLACK = "notifications: {receivers: [{name: r, slack: {%s}}]}"
WEBHOOK = "notifications: {receivers: [{name: r, webhook: {%s}}]}"
KEYS = "secretManagement: {type: KEY_PAIR, config: {%s}}"
KUBERNETES = "platformProviders: [{name: a, type: KUBERNETES, config: {%s}}]"
AWS = "platformProviders: [{name: a, type: ECS, config: {region: r, %s}}]"
CLOUDRUN = "platformProviders: [{name: a, type: CLOUDRUN, config: {project: p, region: r, %s}}]"
DATADOG = "analysisProviders: [{name: a, type: DATADOG, config: {%s}}]"
PROMETHEUS = "analysisProviders: [{name: a, type: PROMETHEUS, config: {address: x, %s}}]"
TARGET = "plugins.0.deployTargets.0.config"
RECEIVER = "notifications.receivers.0"
HIDDEN = [
    ("git: {sshConfigFilePath: s3cret}", "git.sshConfigFilePath"),
    ("git: {sshKeyFile: s3cret}", "git.sshKeyFile"),
    ("git: {sshKeyData: s3cret}", "git.sshKeyData"),
    ("git: {username: u, password: s3cret}", "git.password"),
    (SLACK % "hookURL: s3cret", f"{RECEIVER}.slack.hookURL"),
    (SLACK % "channelID: c, oauthToken: s3cret", f"{RECEIVER}.slack.oauthToken"),
    (SLACK % "channelID: c, oauthTokenData: s3cret", f"{RECEIVER}.slack.oauthTokenData"),
    (WEBHOOK % "url: s3cret", f"{RECEIVER}.webhook.url"),
    (WEBHOOK % "signatureKey: s3cret", f"{RECEIVER}.webhook.signatureKey"),
    (WEBHOOK % "signatureValue: s3cret", f"{RECEIVER}.webhook.signatureValue"),
    (WEBHOOK % "signatureValueFile: s3cret", f"{RECEIVER}.webhook.signatureValueFile"),
    (KEYS % "publicKeyFile: p, privateKeyFile: s3cret", "secretManagement.config.privateKeyFile"),
    (KEYS % "publicKeyFile: p, privateKeyData: s3cret", "secretManagement.config.privateKeyData"),
    *(
        (
            KEYS % f"publicKeyFile: p, privateKeyFile: k, previousKeys: [{{{key}: s3cret}}]",
            f"secretManagement.config.previousKeys.0.{key}",
        )
        for key in ("privateKeyFile", "privateKeyData")
    ),
    (
        "secretManagement: {type: GCP_KMS, config: {keyName: k, decryptServiceAccountFile: s3cret, "
        "encryptServiceAccountFile: e}}",
        "secretManagement.config.decryptServiceAccountFile",
    ),
    (
        "secretManagement: {type: GCP_KMS, config: {keyName: k, decryptServiceAccountFile: d, "
        "encryptServiceAccountFile: s3cret}}",
        "secretManagement.config.encryptServiceAccountFile",
    ),
    (CLOUDRUN % "credentialsFile: s3cret", f"{TARGET}.credentialsFile"),
    (AWS % "credentialsFile: s3cret", f"{TARGET}.credentialsFile"),
    (AWS % "roleARN: s3cret", f"{TARGET}.roleARN"),
    (AWS % "tokenFile: s3cret", f"{TARGET}.tokenFile"),
    (
        PROMETHEUS % "passwordFile: s3cret",
        "plugins.0.config.analysisProviders.0.config.passwordFile",
    ),
    (
        DATADOG % "apiKeyFile: s3cret, applicationKeyFile: f",
        "plugins.0.config.analysisProviders.0.config.apiKeyFile",
    ),
    (
        DATADOG % "apiKeyData: s3cret, applicationKeyData: f",
        "plugins.0.config.analysisProviders.0.config.apiKeyData",
    ),
    (
        DATADOG % "apiKeyFile: f, applicationKeyFile: s3cret",
        "plugins.0.config.analysisProviders.0.config.applicationKeyFile",
    ),
    (
        DATADOG % "apiKeyData: f, applicationKeyData: s3cret",
        "plugins.0.config.analysisProviders.0.config.applicationKeyData",
    ),
    (
        "analysisProviders: [{name: a, type: STACKDRIVER, config: {serviceAccountFile: s3cret}}]",
        "plugins.0.config.analysisProviders.0.config.serviceAccountFile",
    ),
    (
        "chartRepositories: [{name: a, address: b, password: s3cret}]",
        "plugins.0.config.chartRepositories.0.password",
    ),
    (
        "chartRepositories: [{type: GIT, gitRemote: b, sshKeyFile: s3cret}]",
        "plugins.0.config.chartRepositories.0.sshKeyFile",
    ),
    (
        "chartRegistries: [{address: b, password: s3cret}]",
        "plugins.0.config.chartRegistries.0.password",
    ),
]


@pytest.mark.parametrize(("line", "path"), HIDDEN, ids=[path for _, path in HIDDEN])
def test_a_report_hides(line: str, path: str) -> None:
    report = reported_config(read(line))
    assert "s3cret" not in report
    assert at(yaml.safe_load(report), path) == MASK


@pytest.mark.parametrize("key", ["pipedKeyFile", "pipedKeyData"])
def test_a_report_hides_the_piped_key_in(key: str) -> None:
    report = masked(read("name: a", key=f"{key}: s3cret"))
    assert report[key] == MASK


SHOWN = [
    ("name: visible", "name"),
    ("webAddress: visible", "webAddress"),
    ("repositories: [{repoId: visible}]", "repositories.0.repoId"),
    ("git: {username: visible}", "git.username"),
    ("git: {email: visible}", "git.email"),
    ("git: {host: visible}", "git.host"),
    ("git: {hostName: visible}", "git.hostName"),
    (SLACK % "oauthTokenFile: visible, channelID: c", f"{RECEIVER}.slack.oauthTokenFile"),
    (SLACK % "oauthTokenFile: t, channelID: visible", f"{RECEIVER}.slack.channelID"),
    (KEYS % "publicKeyFile: visible, privateKeyFile: f", "secretManagement.config.publicKeyFile"),
    (KEYS % "publicKeyData: visible, privateKeyFile: f", "secretManagement.config.publicKeyData"),
    (KUBERNETES % "kubeConfigPath: visible", f"{TARGET}.kubeConfigPath"),
    (
        "chartRegistries: [{address: b, username: visible}]",
        "plugins.0.config.chartRegistries.0.username",
    ),
]


@pytest.mark.parametrize(("line", "path"), SHOWN, ids=[path for _, path in SHOWN])
def test_a_report_shows(line: str, path: str) -> None:
    assert at(masked(read(line)), path) == "visible"


def settings(config: dict[str, Any]) -> dict[str, Any]:
    spec = read("name: a").model_copy(
        update={
            "plugins": (
                PluginSpec(
                    name="p",
                    url="https://x/p",
                    deploy_targets=(DeployTargetSpec(name="t", config=config),),
                ),
            )
        }
    )
    return at(masked(spec), TARGET)


FOREIGN = [
    pytest.param({"apiToken": "s"}, {"apiToken": MASK}, id="a token"),
    pytest.param({"db": {"Password": "s"}}, {"db": {"Password": MASK}}, id="a nested password"),
    pytest.param({"secret": {"a": "s"}}, {"secret": {"a": MASK}}, id="all of a secret object"),
    pytest.param({"keys": ["s", "t"]}, {"keys": [MASK, MASK]}, id="all of a list of keys"),
    pytest.param({"accessKey": 12345}, {"accessKey": MASK}, id="a key that is a number"),
    pytest.param({"useToken": True}, {"useToken": True}, id="but not a choice"),
    pytest.param(
        {"vars": ["db_password=s", "zone=b"]},
        {"vars": [f"db_password={MASK}", "zone=b"]},
        id="a variable whose name sounds secret",
    ),
    pytest.param(
        {"address": "https://me:s@x/y"},
        {"address": f"https://me:{MASK}@x/y"},
        id="the password of a URL",
    ),
    pytest.param(
        {"address": "https://s@x/y"}, {"address": f"https://{MASK}@x/y"}, id="the token of a URL"
    ),
    pytest.param(
        {"remote": "ssh://git@x/y"}, {"remote": "ssh://git@x/y"}, id="but not a login name"
    ),
    pytest.param(
        {"address": "https://x/y?a=b&access_token=s"},
        {"address": f"https://x/y?a=b&access_token={MASK}"},
        id="a secret in the query of a URL",
    ),
    pytest.param({"zone": "b"}, {"zone": "b"}, id="and nothing else"),
]


@pytest.mark.parametrize(("config", "expected"), FOREIGN)
def test_a_report_hides_in_the_settings_of_any_plugin(
    config: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert settings(config) == expected


TREES = st.recursive(
    st.just("s3cret") | st.just(9876543210),
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3)
        | st.dictionaries(st.text("abc", min_size=1, max_size=3), inner, min_size=1, max_size=3)
    ),
    max_leaves=8,
)


@given(TREES)
def test_nothing_below_a_secret_key_is_shown(tree: object) -> None:
    shown = str(settings({"clientSecret": tree}))
    assert "s3cret" not in shown
    assert "9876543210" not in shown


def test_a_report_is_yaml_with_sorted_keys_and_the_defaults() -> None:
    report = reported_config(read("name: a"))
    keys = [line.partition(":")[0] for line in report.splitlines() if not line.startswith(" ")]
    assert keys == sorted(keys)
    assert {"git", "notifications", "eventWatcher", "planPreview"} <= set(keys)
    assert "syncInterval: 1m0s" in report
