# SPDX-License-Identifier: Apache-2.0
"""Rules of `plugins` in piped files and their error texts."""

import pytest

from pipecd.config.catalog import load_catalog
from pipecd.config.piped import PipedSpec
from pipecd.config.read import read_piped
from pipecd.config.report import ConfigMistake

CATALOG = load_catalog()
HEAD = """
apiVersion: pipecd.dev/v1beta1
kind: Piped
spec:
  projectID: shop
  pipedID: p1
  pipedKeyFile: /etc/key
  apiAddress: localhost:9080
"""


def file_of(line: str) -> str:
    return f"{HEAD}  {line}\n"


def read(text: str) -> PipedSpec:
    return read_piped(text, file="piped.yaml", catalog=CATALOG).spec


def mistakes(text: str) -> list[str]:
    with pytest.raises(ConfigMistake) as caught:
        read_piped(text, file="piped.yaml", catalog=CATALOG)
    return [f"{m.path}: {m.what}" for m in caught.value.report.mistakes]


REFUSED = [
    pytest.param(
        "plugins: [{url: 'file:///p'}]",
        "spec.plugins[0].name: name must be set",
        id="a plugin without a name",
    ),
    pytest.param(
        "plugins: [{name: a, url: 'http://x/a'}]",
        "spec.plugins[0].url: only file, https and oci schemes are supported",
        id="a plugin fetched over plain HTTP",
    ),
    pytest.param(
        "plugins: [{name: a, sourceURL: 'ftp://x/a'}]",
        "spec.plugins[0].url: only file, https and oci schemes are supported",
        id="a plugin of another scheme under the other spelling",
    ),
    pytest.param(
        "plugins: [{name: a, url: a}]",
        "spec.plugins[0].url: only file, https and oci schemes are supported",
        id="a plugin url without a scheme",
    ),
    pytest.param(
        "plugins: [{name: a, url: 'https://[x'}]",
        "spec.plugins[0].url: invalid plugin url: Invalid IPv6 URL",
        id="an invalid plugin url",
    ),
    pytest.param(
        "plugins: [{name: a, url: 'builtin://'}]",
        "spec.plugins[0].url: invalid plugin url: write builtin://NAME",
        id="a built-in plugin without a name",
    ),
    pytest.param(
        "plugins: [{name: a, url: 'file:///a', sourceURL: 'file:///b'}]",
        "spec.plugins[0].url: url and sourceURL differ, write only one of them",
        id="two urls for a plugin",
    ),
    pytest.param(
        "plugins: [{name: a, url: 'file:///a', checksum: abc}]",
        "spec.plugins[0].checksum: write sha256: and the 64 digits that sha256sum prints",
        id="an invalid checksum",
    ),
    pytest.param(
        f"plugins: [{{name: wait, checksum: 'sha256:{'a' * 64}'}}]",
        "spec.plugins[0].checksum: a checksum requires the url of a program",
        id="a checksum of a built-in plugin",
    ),
    pytest.param(
        "plugins: [{name: a, url: 'file:///a', port: 65536}]",
        "spec.plugins[0].port: must be less than or equal to 65535",
        id="a port that does not exist",
    ),
    pytest.param(
        "plugins: [{name: a, url: 'file:///a'}, {name: a, url: 'file:///b'}]",
        "spec.plugins[1].name: two plugins are named a",
        id="two plugins of one name",
    ),
    pytest.param(
        "plugins: [{name: kubernetes, deployTargets: [{config: {}}]}]",
        "spec.plugins[0].deployTargets[0].name: name must be set",
        id="a deploy target without a name",
    ),
    pytest.param(
        "plugins: [{name: kubernetes, deployTargets: [{name: t}, {name: t}]}]",
        "spec.plugins[0].deployTargets[1].name: two deploy targets are named t",
        id="two deploy targets of one name",
    ),
    pytest.param(
        "plugins: [{name: ecs, deployTargets: [{name: t, config: {profile: p}}]}]",
        "spec.plugins[0].deployTargets[0].config.region: region must be set",
        id="settings of a target that its plugin refuses",
    ),
    pytest.param(
        "plugins: [{name: k, url: 'builtin://ecs', deployTargets: [{name: t}]}]",
        "spec.plugins[0].deployTargets[0].config.region: region must be set",
        id="settings of a built-in plugin under another name",
    ),
    pytest.param(
        "plugins: [{name: kubernetes, config: {chartRepositories: [{name: a}]}}]",
        "spec.plugins[0].config.chartRepositories[0].address: address must be set",
        id="settings that their plugin refuses",
    ),
]


@pytest.mark.parametrize(("line", "message"), REFUSED)
def test_a_file_is_refused_with(line: str, message: str) -> None:
    assert mistakes(file_of(line)) == [message]


ACCEPTED = [
    pytest.param("plugins: [{name: a, url: 'file:///p', port: 7001}]", id="a plugin from a file"),
    pytest.param("plugins: [{name: a, url: 'oci://x/p:v1'}]", id="a plugin from a registry"),
    pytest.param("plugins: [{name: a, url: 'https://x/p', config: {b: 1}}]", id="any settings"),
    pytest.param("plugins: [{name: wait}]", id="a built-in plugin by its name"),
    pytest.param("plugins: [{name: pause, url: 'builtin://wait'}]", id="a built-in under its url"),
]


@pytest.mark.parametrize("line", ACCEPTED)
def test_a_file_is_read_with(line: str) -> None:
    assert len(read(file_of(line)).plugins) == 1


def test_an_unknown_built_in_plugin_is_refused_with_a_list_of_all() -> None:
    [message] = mistakes(file_of("plugins: [{name: kubernets}]"))
    assert message.startswith("spec.plugins[0].name: no built-in plugin is named kubernets, ")
    assert "kubernetes" in message


@pytest.mark.parametrize(
    ("url", "builtin"),
    [
        pytest.param("", "wait", id="no url means the built-in plugin of that name"),
        pytest.param("builtin://scriptrun", "scriptrun", id="a builtin url names another"),
        pytest.param("file:///wait", "", id="a program of its own is not built in"),
    ],
)
def test_a_url_selects_a_built_in_plugin_or_a_program(url: str, builtin: str) -> None:
    plugin = read(file_of(f"plugins: [{{name: wait, url: '{url}'}}]")).plugins[0]
    assert plugin.builtin == builtin


def test_the_url_may_be_written_as_source_url() -> None:
    plugin = read(file_of("plugins: [{name: a, sourceURL: 'oci://x/a'}]")).plugins[0]
    assert plugin.url == "oci://x/a"
