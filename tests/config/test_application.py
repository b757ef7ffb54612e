# SPDX-License-Identifier: Apache-2.0
"""Defaults and rules of the generic fields of application files."""

import pytest

from pipecd.config.application import (
    EVENTS,
    ApplicationSpec,
    DriftDetectionSpec,
    MentionSpec,
    NotificationSpec,
    SkipOn,
    StageSpec,
    filename_of,
    is_application_file,
)
from pipecd.config.catalog import Catalog
from pipecd.config.read import ConfigMistake, Generation, read_application, read_event_watcher
from pipecd.config.units import Duration

HEAD = "apiVersion: pipecd.dev/v1beta1\nkind: Application\nspec:\n"


def read(spec: str, catalog: Catalog) -> ApplicationSpec:
    return read_application(HEAD + spec, file="a.yaml", catalog=catalog).spec


def test_an_empty_application_has_the_defaults_of_upstream(catalog: Catalog) -> None:
    spec = read("  {}", catalog)
    assert spec == ApplicationSpec()
    assert spec.timeout == Duration.parse("6h")
    assert spec.planner.auto_rollback
    assert not spec.planner.always_use_pipeline
    assert not spec.trigger.on_commit.disabled
    assert not spec.trigger.on_command.disabled
    assert spec.trigger.on_out_of_sync.disabled
    assert spec.trigger.on_out_of_sync.min_window == Duration.parse("5m")
    assert spec.trigger.on_chain.disabled
    assert spec.pipeline.stages == ()
    assert (spec.post_sync, spec.encryption, spec.attachment, spec.notification) == (None,) * 4


def test_every_field_is_read(catalog: Catalog) -> None:
    spec = read(
        """
  name: shop
  labels: {team: web}
  description: sells things
  planner: {alwaysUsePipeline: true, autoRollback: false}
  commitMatcher: {pipeline: "^feat", quickSync: "^docs"}
  timeout: 1h
  trigger:
    onCommit: {disabled: true, paths: [lib], ignores: [docs]}
    onCommand: {disabled: true}
    onOutOfSync: {disabled: false, minWindow: 10m}
    onChain: {disabled: false}
  postSync: {chain: {applications: [{name: a}, {kind: ECS}, {labels: {x: z}}]}}
  encryption: {encryptedSecrets: {key: cipher}, decryptionTargets: [a.yaml]}
  attachment: {sources: {conf: conf.yaml}, targets: [b.yaml]}
  notification: {mentions: [{event: "*", slackUsers: [U1], slackGroups: [G1]}]}
  eventWatcher:
    - matcher: {name: image, labels: {app: shop}}
      handler:
        type: GIT_UPDATE
        config:
          commitMessage: new
          makePullRequest: true
          replacements: [{file: a.yaml, yamlField: $.image}, {file: b.hcl, HCLField: x}]
  driftDetection: {ignoreFields: ["v1:Service:ns:web#spec.port"]}
  pipeline:
    stages:
      - name: WAIT
        id: one
        desc: a pause
        timeout: 10m
        skipOn: {commitMessagePrefixes: [docs], paths: [docs]}
        with: {duration: 5s}
  plugins: {kubernetes: {input: {namespace: x}}, mine: ~}
""",
        catalog,
    )
    assert (spec.name, spec.description, spec.labels) == ("shop", "sells things", {"team": "web"})
    assert spec.planner.always_use_pipeline
    assert not spec.planner.auto_rollback
    assert (spec.commit_matcher.pipeline, spec.commit_matcher.quick_sync) == ("^feat", "^docs")
    assert spec.timeout == Duration(3600)
    assert spec.trigger.on_commit.paths == ("lib",)
    assert spec.trigger.on_commit.ignores == ("docs",)
    assert spec.trigger.on_commit.disabled
    assert spec.trigger.on_command.disabled
    assert not spec.trigger.on_out_of_sync.disabled
    assert spec.trigger.on_out_of_sync.min_window == Duration(600)
    assert not spec.trigger.on_chain.disabled
    assert spec.post_sync is not None
    assert spec.post_sync.chain is not None
    assert [a.kind for a in spec.post_sync.chain.applications] == ["", "ECS", ""]
    assert spec.encryption is not None
    assert spec.encryption.encrypted_secrets == {"key": "cipher"}
    assert spec.attachment is not None
    assert spec.attachment.sources == {"conf": "conf.yaml"}
    assert spec.notification == NotificationSpec(
        mentions=(MentionSpec(event="*", slackusers=("U1",), slackgroups=("G1",)),)
    )
    update = spec.event_watcher[0].handler.config
    assert update.make_pull_request
    assert [r.fields for r in update.replacements] == [("yamlField",), ("HCLField",)]
    assert spec.pipeline.stages == (
        StageSpec(
            id="one",
            name="WAIT",
            desc="a pause",
            timeout=Duration(600),
            skip_on=SkipOn(commit_message_prefixes=("docs",), paths=("docs",)),
            with_={"duration": "5s"},
        ),
    )
    assert spec.plugins == {"kubernetes": {"input": {"namespace": "x"}}, "mine": {}}


def test_an_explicit_null_with_stays_null(catalog: Catalog) -> None:
    stages = read("  pipeline: {stages: [{name: A, with: ~}, {name: B}]}", catalog).pipeline.stages
    assert [stage.with_ for stage in stages] == [None, {}]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        pytest.param("postSync: {chain: {}}", "spec.postSync.chain.applications: must name at least one", id="a chain without applications"),
        pytest.param("postSync: {chain: {applications: [{}]}}", 'spec.postSync.chain.applications[0]: at least one of "name", "kind" or "labels"', id="a chain application without a condition"),
        pytest.param("encryption: {encryptedSecrets: {a: b}}", "spec.encryption.decryptionTargets: must not be empty", id="secrets for no file"),
        pytest.param("encryption: {encryptedSecrets: {'': b}, decryptionTargets: [x]}", "spec.encryption.encryptedSecrets: a name must not be empty", id="a secret without a name"),
        pytest.param("encryption: {encryptedSecrets: {a: ''}, decryptionTargets: [x]}", "spec.encryption.encryptedSecrets.a: the value must not be empty", id="a secret without a value"),
        pytest.param("encryption: {}", "spec.encryption.decryptionTargets: must not be empty", id="an empty encryption"),
        pytest.param("attachment: {sources: {a: b}}", "spec.attachment.targets: must not be empty", id="attachments for no file"),
        pytest.param("attachment: {sources: {'': b}, targets: [x]}", "spec.attachment.sources: a name must not be empty", id="an attachment without a name"),
        pytest.param("attachment: {sources: {a: ''}, targets: [x]}", "spec.attachment.sources.a: the file name must not be empty", id="an attachment without a file"),
        pytest.param("notification: {mentions: [{event: FOO}]}", 'spec.notification.mentions[0].event: event "FOO" does not exist', id="an unknown event"),
        pytest.param("notification: {mentions: [{}]}", "spec.notification.mentions[0].event", id="a mention without an event"),
        pytest.param("notification: {mentions: [{event: EVENT_STAGE_FAILED}]}", "write STAGE_FAILED", id="an event with the prefix EVENT_"),
        pytest.param("driftDetection: {ignoreFields: [x]}", "spec.driftDetection.ignoreFields[0]: must be in the form of", id="a field to ignore without a path"),
        pytest.param("plugins: {foo: 1}", "spec.plugins.foo: must be an object", id="a section that is not an object"),
        pytest.param("pipeline: {stages: {}}", "spec.pipeline.stages: must be a list", id="stages that are not a list"),
    ],
)  # fmt: skip
def test_a_broken_rule_is_reported(spec: str, message: str, catalog: Catalog) -> None:
    with pytest.raises(ConfigMistake) as mistake:
        read(f"  {spec}", catalog)
    assert message in str(mistake.value)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        pytest.param("commitMatcher: {quickSync: '['}", "spec.commitMatcher.quickSync: not a regular expression", id="a bad expression"),
        pytest.param("timeout: -1s", "spec.timeout: is negative", id="a negative timeout"),
        pytest.param(f"name: {'n' * 37}", "spec.name: the name of an application has at most 36 characters", id="a name that is too long"),
        pytest.param("postSync: {chain: {applications: [{kind: ECSApp}]}}", "applications[0].kind: no application has this kind", id="the kind of a file for that of an application"),
        pytest.param("eventWatcher: [{handler: {type: FOO}}]", "eventWatcher[0].handler.type: this type does nothing", id="an event handler of an unknown type"),
        pytest.param("eventWatcher: [{handler: {type: GIT_UPDATE, config: {replacements: [{file: a, yamlField: a.b}]}}}]", "replacements[0].yamlField: must begin with $", id="a path without the root $"),
        pytest.param("eventWatcher: [{handler: {type: GIT_UPDATE, config: {replacements: [{file: a, regex: abc}]}}}]", "replacements[0].regex: has no group, put the part to replace in parentheses", id="an expression without a group"),
        pytest.param("eventWatcher: [{handler: {type: GIT_UPDATE, config: {replacements: [{file: a}]}}}]", "replacements[0]: does not say what to replace", id="a replacement without a field"),
        pytest.param("plugins: {kubernetes: {inptu: {}}}", 'spec.plugins.kubernetes.inptu: unknown field, did you mean "input"?', id="an unknown key of a section"),
        pytest.param("plugins: {kubernetes: {input: 5}}", "spec.plugins.kubernetes.input: must be an object", id="a wrong value in a section"),
        pytest.param("plugins: {wait: {a: b}}", "spec.plugins.wait: the plugin wait does not use this", id="a section that its plugin does not use"),
        pytest.param("pipeline: {stages: [{name: WAIT_APPROVAL, with: {anyone: true, timeout: 20s}}]}", "stages[0].with.timeout: has no effect here, write it beside the name of the stage", id="the timeout of a stage in its options"),
        pytest.param("pipeline: {stages: [{name: WIAT}]}", 'stages[0].name: no installed plugin has this stage, did you mean "WAIT"?', id="a stage that is spelled wrong"),
        pytest.param("pipeline: {stages: [{desc: x}]}", "stages[0].name: must be set", id="a stage without a name"),
        pytest.param("pipeline: {stages: [{name: A, timeout: -1s}]}", "stages[0].timeout: is negative", id="a stage with a negative timeout"),
    ],
)  # fmt: skip
def test_advice_is_a_warning(spec: str, message: str, catalog: Catalog) -> None:
    warnings = read_application(HEAD + f"  {spec}", file="a.yaml", catalog=catalog).warnings
    assert [w for w in warnings if message in str(w)], warnings


def test_mentions_of_an_event_are_joined() -> None:
    notification = NotificationSpec(
        mentions=(
            MentionSpec(event="*", slack=("a", "b")),
            MentionSpec(event="STAGE_FAILED", slackusers=("b", "c"), slackgroups=("g",)),
            MentionSpec(event="STAGE_SKIPPED", slackusers=("d",)),
        )
    )
    assert notification.users("STAGE_FAILED") == ("a", "b", "c")
    assert notification.groups("STAGE_FAILED") == ("g",)
    assert notification.users("PIPED_STARTED") == ("a", "b")


def test_there_are_twenty_events() -> None:
    assert len(set(EVENTS)) == 20


def test_ignored_fields_are_grouped_by_resource() -> None:
    drift = DriftDetectionSpec(ignore_fields=("r#a", "s#c", "r#b"))
    assert drift.ignored_by_resource() == {"r": ("a", "b"), "s": ("c",)}


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("app.pipecd.yaml", True),
        (".pipecd.yaml", True),
        ("foo.pipecd.yaml", True),
        (".pipe.yaml", True),
        ("foo.pipe.yaml", False),
        ("app.pipecd.yml", False),
        ("app.yaml", False),
    ],
)
def test_application_files_are_recognized_by_name(name: str, is_one: bool) -> None:
    assert is_application_file(name) is is_one


def test_an_application_registered_without_a_file_name_has_the_legacy_one() -> None:
    assert filename_of("") == ".pipe.yaml"
    assert filename_of("any.yaml") == "any.yaml"


EVENT_HEAD = "apiVersion: pipecd.dev/v1beta1\nkind: EventWatcher\nspec: "


@pytest.mark.parametrize(
    ("event", "message"),
    [
        pytest.param("{replacements: [{file: f, regex: r}]}", "events[0].name: event name must not be empty", id="an event without a name"),
        pytest.param("{name: e}", "events[0].replacements: must have at least one replacement", id="an event that replaces nothing"),
        pytest.param("{name: e, replacements: [{regex: r}]}", "replacements[0].file: a replacement must name a file", id="a replacement without a file"),
        pytest.param("{name: e, replacements: [{file: f}]}", "replacements[0]: a replacement must have a field", id="a replacement without a field"),
        pytest.param("{name: e, replacements: [{file: f, regex: r, yamlField: $.a, jsonField: j}]}", "must not have multiple fields", id="three fields"),
    ],
)  # fmt: skip
def test_an_invalid_event_is_reported(event: str, message: str) -> None:
    with pytest.raises(ConfigMistake) as mistake:
        read_event_watcher(f"{EVENT_HEAD}{{events: [{event}]}}", file="e.yaml")
    assert message in str(mistake.value)


def test_of_two_fields_of_a_replacement_the_first_is_used() -> None:
    event = "{name: e, replacements: [{file: f, regex: r, yamlField: $.a}]}"
    spec = read_event_watcher(f"{EVENT_HEAD}{{events: [{event}]}}", file="e.yaml")
    assert spec is not None
    assert spec.events[0].replacements[0].fields == ("yamlField", "regex")


def test_a_file_of_another_kind_is_not_an_event_watcher_file() -> None:
    assert read_event_watcher(HEAD + "  {}", file="a.yaml") is None


def test_unknown_keys_of_an_event_watcher_are_refused_by_v0() -> None:
    text = EVENT_HEAD + "{foo: 1}"
    assert read_event_watcher(text, file="e.yaml") is not None
    with pytest.raises(ConfigMistake, match=r"spec\.foo: unknown field"):
        read_event_watcher(text, file="e.yaml", reader=Generation.V0)
