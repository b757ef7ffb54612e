# SPDX-License-Identifier: Apache-2.0
"""Rules of piped files and their error texts."""

import pytest

from pipecd.config.catalog import load_catalog
from pipecd.config.envelope import Generation
from pipecd.config.piped import PipedSpec
from pipecd.config.read import read_piped
from pipecd.config.report import ConfigMistake

CATALOG = load_catalog()
IDENTITY = {
    "projectID": "shop",
    "pipedID": "p1",
    "pipedKeyFile": "/etc/key",
    "apiAddress": "localhost:9080",
}


def file_of(*lines: str, without: str = "") -> str:
    given = [f"{key}: {value}" for key, value in IDENTITY.items() if key != without]
    body = "\n".join(f"  {line}" for part in (*given, *lines) for line in part.splitlines())
    return f"apiVersion: pipecd.dev/v1beta1\nkind: Piped\nspec:\n{body}\n"


def read(text: str) -> PipedSpec:
    return read_piped(text, file="piped.yaml", catalog=CATALOG).spec


def mistakes(text: str) -> list[str]:
    with pytest.raises(ConfigMistake) as caught:
        read_piped(text, file="piped.yaml", catalog=CATALOG)
    return [f"{m.path}: {m.what}" for m in caught.value.report.mistakes]


REQUIRED = [
    ("projectID", "spec.projectID: projectID must be set"),
    ("pipedID", "spec.pipedID: pipedID must be set"),
    ("apiAddress", "spec.apiAddress: apiAddress must be set"),
    ("pipedKeyFile", "spec: either pipedKeyFile or pipedKeyData must be set"),
]


@pytest.mark.parametrize(("key", "message"), REQUIRED, ids=[key for key, _ in REQUIRED])
def test_a_file_is_refused_without(key: str, message: str) -> None:
    assert mistakes(file_of(without=key)) == [message]


@pytest.mark.parametrize(
    ("address", "message"),
    [
        pytest.param(
            "https://pipecd.example.com",
            "https://pipecd.example.com is a URL, write host:port, such as pipecd.example.com:443",
            id="a URL",
        ),
        pytest.param(
            "pipecd.example.com:99999",
            "there is no port 99999, ports end at 65535",
            id="a port that does not exist",
        ),
    ],
)
def test_an_address_that_is_none_is_refused(address: str, message: str) -> None:
    text = file_of(f"apiAddress: {address}", without="apiAddress")
    assert mistakes(text) == [f"spec.apiAddress: {message}"]


@pytest.mark.parametrize("address", ["pipecd", "[::1]:9080", "dns:///pipecd:443", "unix:/run/cd"])
def test_addresses_that_grpc_knows_are_read(address: str) -> None:
    text = file_of(f'apiAddress: "{address}"', without="apiAddress")
    assert read(text).api_address == address


def slack(fields: str) -> str:
    return f"notifications: {{receivers: [{{name: r, slack: {{{fields}}}}}]}}"


def webhook(fields: str) -> str:
    return f"notifications: {{receivers: [{{name: r, webhook: {{{fields}}}}}]}}"


def keys(fields: str) -> str:
    return f"secretManagement: {{type: KEY_PAIR, config: {{{fields}}}}}"


NEGATIVE = "must be greater than or equal to 0"
SLACK = "spec.notifications.receivers[0].slack"
KEY_PAIR = "spec.secretManagement.config"
ONE_KEY = "exactly one of privateKeyFile, privateKeyData and keyName must be set"
REFUSED = [
    pytest.param(
        "pipedKeyData: YQ==",
        "spec.pipedKeyData: only pipedKeyFile or pipedKeyData can be set",
        id="two piped keys",
    ),
    pytest.param(
        "syncInterval: -1s",
        f"spec.syncInterval: syncInterval {NEGATIVE}",
        id="a negative sync interval",
    ),
    pytest.param(
        "appConfigSyncInterval: -1s",
        f"spec.appConfigSyncInterval: appConfigSyncInterval {NEGATIVE}",
        id="a negative interval for application files, on which upstream crashes",
    ),
    pytest.param(
        "git: {sshKeyFile: a, password: YQ==, username: u}",
        "spec.git.password: "
        "cannot configure both sshKeyData or sshKeyFile and password authentication",
        id="a key and a password for Git",
    ),
    pytest.param(
        "git: {sshKeyFile: a, sshKeyData: YQ==}",
        "spec.git.sshKeyData: only either sshKeyFile or sshKeyData can be set",
        id="two keys for Git",
    ),
    pytest.param(
        "git: {password: YQ==}",
        "spec.git.username: both username and password must be set",
        id="a password for Git without a user",
    ),
    pytest.param(
        slack("hookURL: h, channelID: c"),
        f"{SLACK}.hookURL: only one of sending via hook URL or API should be used",
        id="a Slack hook and a channel",
    ),
    pytest.param(
        slack("hookURL: h, oauthToken: t"),
        f"{SLACK}.hookURL: only one of sending via hook URL or API should be used",
        id="a Slack hook and a token",
    ),
    pytest.param(
        slack("channelID: c"),
        f"{SLACK}: missing channelID or OAuth token configuration",
        id="a Slack channel without a token",
    ),
    pytest.param(
        slack("oauthTokenFile: t"),
        f"{SLACK}: missing channelID or OAuth token configuration",
        id="a Slack token without a channel",
    ),
    pytest.param(
        slack("channelID: c, oauthTokenFile: t, oauthTokenData: dA=="),
        f"{SLACK}: only one of OAuthToken, OAuthTokenData and OAuthTokenFile should be set",
        id="two Slack tokens",
    ),
    pytest.param(
        "notifications: {routes: [{name: all, receiver: nobody}]}",
        "spec.notifications.routes[0].receiver: missing receiver nobody that is used in route all",
        id="a route to a receiver that is not there",
    ),
    pytest.param(
        "secretManagement: {type: VAULT}",
        "spec.secretManagement.type: unsupported secret management type: VAULT, "
        "write one of KEY_PAIR, GCP_KMS, AWS_KMS",
        id="a type of secret management that does not exist",
    ),
    pytest.param(
        "secretManagement: {}",
        "spec.secretManagement.type: unsupported secret management type: , "
        "write one of KEY_PAIR, GCP_KMS, AWS_KMS",
        id="secret management without a type",
    ),
    pytest.param(
        keys("publicKeyFile: p"),
        f"{KEY_PAIR}: either privateKeyFile or privateKeyData must be set",
        id="a key pair without the private key",
    ),
    pytest.param(
        keys("publicKeyFile: p, privateKeyFile: a, privateKeyData: YQ=="),
        f"{KEY_PAIR}.privateKeyData: only privateKeyFile or privateKeyData can be set",
        id="two private keys",
    ),
    pytest.param(
        keys("privateKeyFile: p"),
        f"{KEY_PAIR}: either publicKeyFile or publicKeyData must be set",
        id="a key pair without the public key",
    ),
    pytest.param(
        keys("privateKeyFile: p, publicKeyFile: a, publicKeyData: YQ=="),
        f"{KEY_PAIR}.publicKeyData: only publicKeyFile or publicKeyData can be set",
        id="two public keys",
    ),
    pytest.param(
        keys("privateKeyFile: a, publicKeyFile: b, previousKeys: [{}]"),
        f"{KEY_PAIR}.previousKeys[0]: {ONE_KEY}",
        id="a previous key without a key",
    ),
    pytest.param(
        keys(
            "privateKeyFile: a, publicKeyFile: b, previousKeys: [{privateKeyFile: c, privateKeyData: YQ==}]"
        ),
        f"{KEY_PAIR}.previousKeys[0]: {ONE_KEY}",
        id="a previous key with two values",
    ),
    pytest.param(
        keys("privateKeyFile: a, publicKeyFile: b, previousKeys: [{keyName: k}]"),
        f"{KEY_PAIR}.previousKeys[0].keyName: is for GCP_KMS and AWS_KMS only",
        id="a previous key of a service that is not configured",
    ),
    *(
        pytest.param(
            f"secretManagement: {{type: {kind}, config: {{}}}}",
            f"{KEY_PAIR}.keyName: keyName must be set",
            id=f"a key of {kind} without its name",
        )
        for kind in ("GCP_KMS", "AWS_KMS")
    ),
    pytest.param(
        "eventWatcher: {checkInterval: -1s}",
        f"spec.eventWatcher.checkInterval: eventWatcher.checkInterval {NEGATIVE}",
        id="a negative interval for events, on which upstream crashes",
    ),
    pytest.param(
        "eventWatcher: {gitRepos: [{includes: [a]}]}",
        "spec.eventWatcher.gitRepos[0].repoId: missing repoID at index 0",
        id="event settings for no repository",
    ),
    pytest.param(
        "eventWatcher: {gitRepos: [{repoId: a}, {repoId: a}]}",
        "spec.eventWatcher.gitRepos[1].repoId: "
        "duplicated repo id (a) found in the eventWatcher directive",
        id="event settings for one repository twice",
    ),
    *(
        pytest.param(
            f"rendering: {{{key}: [{value}]}}",
            f'spec.rendering.{key}[0]: invalid value "{value}", write the name of {what}',
            id=f"{value} in rendering.{key}",
        )
        for key, value, what in (
            ("variables", "A-B", "an environment variable"),
            ("valueFileHosts", "https://a", "a host, without scheme and port"),
            ("valueFileHosts", "a:80", "a host, without scheme and port"),
            ("kustomizeOptions", "--stack-trace", "a flag of kustomize build, without dashes"),
            ("kustomizeOptions", "a=b", "a flag of kustomize build, without dashes"),
        )
    ),
    pytest.param(
        "rendering: {memory: 2 GB}",
        'spec.rendering.memory: invalid size "2 GB", write it like 512Mi or 2Gi',
        id="a size in the wrong unit",
    ),
    pytest.param(
        "rendering: {timeout: -1s}",
        "spec.rendering.timeout: timeout must be greater than or equal to 0",
        id="a negative rendering.timeout",
    ),
    *(
        pytest.param(
            f"planPreview: {{{key}: {value}}}",
            f"spec.planPreview.{key}: planPreview.{key} {NEGATIVE}",
            id=f"a negative planPreview.{key}",
        )
        for key, value in (
            ("workerNum", "-1"),
            ("commandQueueBufferSize", "-1"),
            ("commandCheckInterval", "-1s"),
            ("commandHandleTimeout", "-1s"),
        )
    ),
    pytest.param(
        "repositories: {repoId: a}",
        "spec.repositories: must be a list, not an object",
        id="an object for a list",
    ),
    pytest.param(
        "name: 5",
        "spec.name: must be a string, not a number, put it in quotes",
        id="a number for a string",
    ),
]


@pytest.mark.parametrize(("lines", "message"), REFUSED)
def test_a_file_is_refused_with(lines: str, message: str) -> None:
    assert mistakes(file_of(lines)) == [message]


ACCEPTED = [
    pytest.param("git: {sshKeyData: YQ==}", id="a key for Git"),
    pytest.param("git: {username: u, password: YQ==}", id="a password for Git"),
    pytest.param(slack("hookURL: h, mentionedAccounts: [a]"), id="a Slack hook"),
    pytest.param(slack("channelID: c, oauthToken: t"), id="a Slack token"),
    pytest.param(
        webhook("signatureValue: a, signatureValueFile: b"),
        id="two webhook signatures, which are refused when it is sent",
    ),
    pytest.param("notifications: {receivers: [{name: r}]}", id="a receiver without a section"),
    pytest.param(
        "notifications: {routes: [{receiver: r, events: [NO_SUCH]}], receivers: [{name: r}]}",
        id="an event that does not exist",
    ),
    pytest.param(keys("privateKeyFile: a, publicKeyData: YQ=="), id="a key pair"),
    pytest.param(
        "secretManagement: {type: GCP_KMS, config: {keyName: k, decryptServiceAccountFile: d, "
        "encryptServiceAccountFile: e}}",
        id="a key of Google Cloud with service accounts",
    ),
    pytest.param(
        "secretManagement: {type: GCP_KMS, config: {keyName: k}}",
        id="a key of Google Cloud with the credentials of the machine, which upstream refuses",
    ),
    pytest.param(
        "secretManagement: {type: AWS_KMS, config: {keyName: k, region: r, "
        "previousKeys: [{keyName: l}, {privateKeyFile: f}]}}",
        id="a key of AWS after others",
    ),
    pytest.param(
        keys("privateKeyFile: a, publicKeyFile: b, previousKeys: [{privateKeyData: YQ==}]"),
        id="a key pair after another",
    ),
    pytest.param("repositories: [{repoId: a}, {repoId: a}]", id="a repository twice"),
    pytest.param("foo: bar", id="an unknown key"),
    pytest.param("PROJECTID: other", id="a key in another case"),
    pytest.param("syncInterval: 5", id="a number of nanoseconds"),
    pytest.param("notifications:", id="null for an object"),
]


@pytest.mark.parametrize("lines", ACCEPTED)
def test_a_file_is_read_with(lines: str) -> None:
    assert read(file_of(lines)).project_id == "shop"


def test_all_mistakes_are_reported_with_their_position() -> None:
    text = file_of("git: {password: YQ==}", "planPreview: {workerNum: -1}", without="pipedID")
    with pytest.raises(ConfigMistake) as caught:
        read(text)
    assert str(caught.value).splitlines() == [
        "piped.yaml:4:3: spec.pipedID: pipedID must be set",
        "piped.yaml:7:8: spec.git.username: both username and password must be set",
        "piped.yaml:8:28: spec.planPreview.workerNum: "
        "planPreview.workerNum must be greater than or equal to 0",
    ]


def test_mentions_are_converted_to_the_form_of_slack() -> None:
    fields = "hookURL: h, mentionedAccounts: ['@a', b], mentionedGroups: [g, '<!subteam^h>']"
    receiver = read(file_of(slack(fields))).notifications.receivers[0].slack
    assert receiver is not None
    assert receiver.mentioned_accounts == ("a", "b")
    assert receiver.mentioned_groups == ("<!subteam^g>", "<!subteam^h>")


GENERATIONS = [
    pytest.param("plugins: []", Generation.V1, id="plugins make a file v1"),
    pytest.param("", Generation.V1, id="a file that names nothing to deploy to is v1"),
    *(
        pytest.param(f"{key}: []", Generation.V0, id=f"{key} makes a file v0")
        for key in (
            "platformProviders",
            "cloudProviders",
            "analysisProviders",
            "chartRepositories",
            "chartRegistries",
        )
    ),
]


@pytest.mark.parametrize(("lines", "generation"), GENERATIONS)
def test_the_generation_of_a_file(lines: str, generation: Generation) -> None:
    text = file_of(lines) if lines else file_of()
    assert read_piped(text, file="piped.yaml", catalog=CATALOG).generation is generation


def test_both_generations_in_one_file_are_refused() -> None:
    [message] = mistakes(file_of("platformProviders: []", "plugins: []"))
    assert message.startswith("spec.plugins: ")
    assert "cannot be combined" in message


TOP_LEVEL = [
    pytest.param("platformProviders: []", True, id="refused in a v0 file"),
    pytest.param("plugins: []", False, id="ignored in a v1 file"),
]


@pytest.mark.parametrize(("lines", "is_refused"), TOP_LEVEL)
def test_an_unknown_key_beside_spec_is(lines: str, is_refused: bool) -> None:
    text = file_of(lines) + "extra: 1\n"
    if is_refused:
        assert mistakes(text) == ["extra: unknown field"]
    else:
        assert read(text).project_id == "shop"


ENVELOPES = [
    pytest.param("", "apiVersion", id="an empty file"),
    pytest.param("apiVersion: pipecd.dev/v1beta1\nkind: Piped\nspec:\n", "spec", id="a null spec"),
    pytest.param("apiVersion: pipecd.dev/v1beta1\nkind: Piped\n", "spec", id="no spec"),
    pytest.param(file_of().replace("Piped", "Application"), "kind", id="another kind"),
    pytest.param(file_of().replace("v1beta1", "v2"), "apiVersion", id="another version"),
]


@pytest.mark.parametrize(("text", "path"), ENVELOPES)
def test_a_file_is_refused_for_its_envelope(text: str, path: str) -> None:
    assert any(message.startswith(path) for message in mistakes(text))
