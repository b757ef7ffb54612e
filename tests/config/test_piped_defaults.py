# SPDX-License-Identifier: Apache-2.0
"""Defaults of piped files."""

from operator import attrgetter
from pathlib import Path

import pytest

from pipecd.config.catalog import load_catalog
from pipecd.config.piped import PipedSpec
from pipecd.config.read import read_piped
from pipecd.config.units import Duration, Size

CATALOG = load_catalog()
SMALLEST = """
apiVersion: pipecd.dev/v1beta1
kind: Piped
spec:
  projectID: shop
  pipedID: p1
  pipedKeyData: YS1rZXk=
  apiAddress: localhost:9080
"""
PARTS = """
  repositories: [{}]
  plugins: [{name: wait, deployTargets: []}, {name: kubernetes, deployTargets: [{name: t}]}]
  notifications:
    routes: [{receiver: w}]
    receivers: [{name: w, webhook: {}}, {name: s, slack: {hookURL: "https://x"}}]
  eventWatcher: {gitRepos: [{repoId: r}]}
  secretManagement:
    type: KEY_PAIR
    config: {privateKeyFile: a, publicKeyFile: b}
"""


def read(text: str) -> PipedSpec:
    return read_piped(text, file="piped.yaml", catalog=CATALOG).spec


DEFAULTS = [
    ("name", ""),
    ("piped_key_file", ""),
    ("web_address", ""),
    ("sync_interval", Duration(60)),
    ("app_config_sync_interval", Duration(60)),
    ("app_selector", {}),
    ("git.username", ""),
    ("git.email", ""),
    ("git.ssh_config_file_path", ""),
    ("git.host", ""),
    ("git.host_name", ""),
    ("git.ssh_key_file", ""),
    ("git.ssh_key_data", ""),
    ("git.password", ""),
    ("git.ssh_host", "github.com"),
    ("git.ssh_host_name", "github.com"),
    ("git.ssh_config_file", Path.home() / ".ssh" / "config"),
    ("event_watcher.check_interval", Duration(60)),
    ("event_watcher.git_repos", ()),
    ("plan_preview.worker_num", 3),
    ("plan_preview.command_queue_buffer_size", 10),
    ("plan_preview.command_check_interval", Duration(5)),
    ("plan_preview.command_handle_timeout", Duration(300)),
    ("rendering.variables", ()),
    ("rendering.value_file_hosts", ()),
    ("rendering.kustomize_options", ()),
    ("rendering.timeout", Duration(300)),
    ("rendering.memory", Size(2 * 1024**3)),
    ("secret_management", None),
    ("repositories", ()),
    ("plugins", ()),
    ("notifications.routes", ()),
    ("notifications.receivers", ()),
]


@pytest.mark.parametrize(("attribute", "expected"), DEFAULTS, ids=[name for name, _ in DEFAULTS])
def test_a_file_with_only_the_required_keys_has(attribute: str, expected: object) -> None:
    assert attrgetter(attribute)(read(SMALLEST)) == expected


PART_DEFAULTS = [
    ("repositories", {"repo_id": "", "remote": "", "branch": ""}),
    ("plugins", {"url": "", "port": 0, "config": {}, "deploy_targets": ()}),
    (
        "notifications.routes",
        {
            "name": "",
            "events": (),
            "ignore_events": (),
            "groups": (),
            "ignore_groups": (),
            "apps": (),
            "ignore_apps": (),
            "labels": {},
            "ignore_labels": {},
        },
    ),
    ("notifications.receivers", {"slack": None}),
    ("event_watcher.git_repos", {"commit_message": "", "includes": (), "excludes": ()}),
]


@pytest.mark.parametrize(
    ("items", "expected"), PART_DEFAULTS, ids=[f"an item of {name}" for name, _ in PART_DEFAULTS]
)
def test_an_item_has(items: str, expected: dict[str, object]) -> None:
    first = attrgetter(items)(read(SMALLEST + PARTS))[0]
    assert {name: getattr(first, name) for name in expected} == expected


def test_a_webhook_has_the_default_signature_header() -> None:
    webhook = read(SMALLEST + PARTS).notifications.receivers[0].webhook
    assert webhook is not None
    assert webhook.signature_key == "PipeCD-Signature"
    assert (webhook.url, webhook.signature_value, webhook.signature_value_file) == ("", "", "")


def test_slack_needs_only_its_hook_url() -> None:
    slack = read(SMALLEST + PARTS).notifications.receivers[1].slack
    assert slack is not None
    rest = slack.model_dump(exclude={"hook_url"})
    assert not any(rest.values())


def test_a_deploy_target_needs_only_its_name() -> None:
    target = read(SMALLEST + PARTS).plugins[1].deploy_targets[0]
    assert (target.labels, target.config) == ({}, {})


ZEROES = [
    pytest.param("syncInterval: 0s", "sync_interval", Duration(60), id="an interval of 0s"),
    pytest.param("syncInterval: 0", "sync_interval", Duration(60), id="an interval of 0"),
    pytest.param("planPreview: {workerNum: 0}", "plan_preview.worker_num", 3, id="no workers"),
    pytest.param("rendering: {timeout: 0s}", "rendering.timeout", Duration(300), id="no time"),
    pytest.param("rendering: {memory: 0}", "rendering.memory", Size(2**31), id="no memory"),
    pytest.param("git:", "git.host", "", id="null for an object"),
]


@pytest.mark.parametrize(("line", "attribute", "expected"), ZEROES)
def test_a_zero_value_means_the_default(line: str, attribute: str, expected: object) -> None:
    assert attrgetter(attribute)(read(f"{SMALLEST}  {line}\n")) == expected
