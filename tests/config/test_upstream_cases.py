# SPDX-License-Identifier: Apache-2.0
"""Decode cases that were verified against upstream, for each generation of piped.

A case has the result of each reader: OK, or a part of the message. `Later` is a warning of a file
that loads, because upstream notices the mistake only when it plans or runs.
"""

from dataclasses import dataclass

import pytest

from pipecd.config.catalog import Catalog
from pipecd.config.read import ApplicationConfig, ConfigMistake, Generation, read_application
from pipecd.config.units import Duration

V0, V1 = Generation.V0, Generation.V1
HEAD = "apiVersion: pipecd.dev/v1beta1\n"
OK = ""


@dataclass(frozen=True)
class Later:
    """A warning of a file that loads."""

    what: str


def kubernetes(spec: str) -> str:
    return f"{HEAD}kind: KubernetesApp\nspec: {spec}"


def application(spec: str) -> str:
    return f"{HEAD}kind: Application\nspec: {spec}"


def stage(text: str) -> str:
    return kubernetes(f"{{pipeline: {{stages: [{{{text}}}]}}}}")


def read(text: str, catalog: Catalog, reader: Generation) -> ApplicationConfig:
    return read_application(text, file="app.pipecd.yaml", catalog=catalog, reader=reader)


CASES = [
    pytest.param(f"{HEAD}kind: KubernetesApp", OK, OK, id="a kind without a spec has the defaults"),
    pytest.param(kubernetes("~"), OK, OK, id="a null spec has the defaults"),
    pytest.param(kubernetes("{foo: bar}"), "spec.foo: unknown field", Later("spec.foo: unknown field"), id="an unknown key"),
    pytest.param(f"{HEAD}kind: KubernetesApp\nfoo: 1", "foo: unknown field", Later("foo: unknown field"), id="an unknown key at the top"),
    pytest.param(kubernetes("{NAME: abc, Input: {NameSpace: x}}"), OK, OK, id="keys in any case"),
    pytest.param(kubernetes("{labels: {a: 1}}"), "spec.labels.a: must be a string", "spec.labels.a: must be a string", id="a number for a label"),
    pytest.param(kubernetes("{planner: {alwaysUsePipeline: yes}}"), OK, OK, id="yes is true"),
    pytest.param(kubernetes("{name: a, name: b}"), OK, OK, id="a key given twice"),
    pytest.param(kubernetes("{timeout: 10}"), OK, OK, id="a timeout in nanoseconds"),
    pytest.param(kubernetes("{timeout: 0s, trigger: {onOutOfSync: {minWindow: 0s}}}"), OK, OK, id="zero durations"),
    pytest.param(kubernetes("{timeout: -5m}"), OK, OK, id="a negative timeout"),
    pytest.param(kubernetes("{timeout: ~}"), "spec.timeout: invalid duration: null", "spec.timeout: invalid duration: null", id="a null duration"),
    pytest.param(stage("name: K8S_SYNC"), "unsupported stage name: K8S_SYNC", OK, id="a stage of plugins only"),
    pytest.param(stage("name: FOO"), "unsupported stage name: FOO", Later("unsupported stage name: FOO"), id="an unknown stage"),
    pytest.param(stage("desc: x"), "unsupported stage name: ", Later("unsupported stage name: "), id="a stage without a name"),
    pytest.param(stage("name: WAIT, foo: 1"), Later("foo: unknown field"), Later("foo: unknown field"), id="an unknown key of a stage"),
    pytest.param(stage("name: WAIT, with: {foo: 1}"), Later("with.foo: unknown field"), Later("with.foo: unknown field"), id="an unknown option of a stage"),
    pytest.param(stage("name: WAIT"), OK, OK, id="a wait without a duration"),
    pytest.param(stage("name: WAIT, with: 5"), "with: must be an object", Later("with: must be an object"), id="options that are not an object"),
    pytest.param(stage("name: WAIT_APPROVAL, with: {minApproverNum: 0}"), OK, OK, id="no number of approvers"),
    pytest.param(stage("name: WAIT_APPROVAL, with: {minApproverNum: -1}"), "minApproverNum -1 should be greater than 0", Later("minApproverNum -1 should be greater than 0"), id="a negative number of approvers"),
    pytest.param(stage("name: WAIT_APPROVAL"), OK, OK, id="an approval by anyone"),
    pytest.param(stage("name: SCRIPT_RUN"), OK, OK, id="an empty script"),
    pytest.param(stage("name: CUSTOM_SYNC"), "the CUSTOM_SYNC stage requires run field", Later("the CUSTOM_SYNC stage requires run field"), id="a custom sync without a script"),
    pytest.param(stage("name: ANALYSIS, with: {}"), "the ANALYSIS stage requires duration field", Later("the ANALYSIS stage requires duration field"), id="an analysis without a duration"),
    pytest.param(stage("name: ANALYSIS, with: {duration: 1m, metrics: [{strategy: FOO, provider: p, query: q, interval: 1s}]}"), OK, OK, id="an unknown strategy of analysis"),
    pytest.param(stage("name: ANALYSIS, with: {duration: 1m, metrics: [{provider: p, interval: 1s}]}"), 'missing "query" field', Later('missing "query" field'), id="an analysis without a query"),
    pytest.param(stage("name: K8S_CANARY_ROLLOUT, with: {replicas: 2.7}"), OK, OK, id="a fraction of replicas"),
    pytest.param(stage("name: K8S_CANARY_ROLLOUT, with: {replicas: '3'}"), OK, OK, id="replicas as text"),
    pytest.param(stage("name: K8S_CANARY_ROLLOUT, with: {replicas: 10.5%}"), "invalid replicas", Later("invalid replicas"), id="a fraction of a percentage"),
    pytest.param(stage("name: K8S_CANARY_ROLLOUT, with: {replicas: ~}"), "invalid replicas: null", Later("invalid replicas: null"), id="null replicas"),
    pytest.param(stage("name: K8S_TRAFFIC_ROUTING, with: {canary: 10.5}"), "invalid percentage", Later("invalid percentage"), id="a fraction of a percentage"),
    pytest.param(stage("name: K8S_TRAFFIC_ROUTING, with: {canary: ~}"), "invalid percentage: null", Later("invalid percentage: null"), id="a null percentage"),
    pytest.param(stage("name: K8S_TRAFFIC_ROUTING, with: {canary: ''}"), "invalid percentage", Later("invalid percentage"), id="an empty percentage"),
    pytest.param(kubernetes("{driftDetection: {ignoreFields: ['#']}}"), OK, OK, id="an empty field to ignore"),
    pytest.param(kubernetes("{driftDetection: {ignoreFields: ['a', 'a#b#c']}}"), "ignoreFields[0]: must be in the form of", "ignoreFields[1]: must be in the form of", id="fields to ignore in a wrong form"),
    pytest.param(kubernetes("{postSync: {chain: {applications: [{name: a}], conditions: {}}}}"), "chain.conditions: unknown field", Later("chain.conditions: unknown field"), id="conditions of a chain"),
    pytest.param(f"{HEAD}kind: ECSApp\nspec: {{input: {{accessType: elb}}}}", "invalid accessType: elb", "invalid accessType: elb", id="an access type in lower case"),
    pytest.param(application("{plugins: {kubernetes: {input: {namespace: x}}}}"), OK, OK, id="an Application of one platform"),
    pytest.param(application("{plugins: {kubernetes: {}, analysis: {appCustomArgs: {a: b}}}}"), "appCustomArgs: unknown field", OK, id="an Application with arguments for analysis"),
    pytest.param(application("{plugins: {kubernetes: {}, terraform: {}}}"), "multiple platform providers are not allowed", OK, id="an Application of two platforms"),
    pytest.param(application("{plugins: {kubernetes_multicluster: {}}}"), "unsupported kind: Application", OK, id="an Application of several clusters"),
    pytest.param(application("{plugins: {terraform: {workspace: x}}}"), "workspace: unknown field", OK, id="a section of Terraform"),
    pytest.param(application("{plugins: {kubernetes: ~}}"), OK, OK, id="a null section"),
    pytest.param(application("{plugins: {kubernetes: 1}}"), "spec.plugins.kubernetes: must be an object", "spec.plugins.kubernetes: must be an object", id="a section that is not an object"),
    pytest.param(kubernetes("{plugins: {foo: 1}}"), OK, "spec.plugins.foo: must be an object", id="plugins that are not an object in a v0 kind"),
    pytest.param(kubernetes("{commitMatcher: {pipeline: '('}}"), Later("not a regular expression"), Later("not a regular expression"), id="a bad regular expression"),
    pytest.param(kubernetes("{pipeline: {}}"), OK, OK, id="a pipeline without stages"),
    pytest.param(f"{HEAD}kind: Foo", "unsupported kind: Foo", "unsupported kind: Foo", id="an unknown kind"),
    pytest.param(f"{HEAD}kind: Piped", "unsupported kind: Piped", "unsupported kind: Piped", id="a kind that is not an application"),
    pytest.param(f"{HEAD}spec: {{}}", "kind is required", "kind is required", id="no kind"),
    pytest.param("kind: KubernetesApp\napiVersion: v2", "unsupported version: v2", "unsupported version: v2", id="another version"),
    pytest.param("", "kind is required", "apiVersion is required", id="an empty file"),
    pytest.param(application("{pipeline: {stages: [{name: WAIT}]}}"), "unsupported kind: Application", Later("duration must be greater than 0"), id="a wait without a duration in an Application"),
    pytest.param(application("{plugins: {kubernetes: {}}, pipeline: {stages: [{name: WAIT_APPROVAL}]}}"), OK, Later("approvers must be set"), id="an approval by nobody in an Application"),
    pytest.param(application("{plugins: {kubernetes: {}}, pipeline: {stages: [{name: SCRIPT_RUN}]}}"), OK, Later("SCRIPT_RUN stage requires run field"), id="no script in an Application"),
    pytest.param(application("{plugins: {kubernetes: {}}, pipeline: {stages: [{name: MINE}]}}"), "unsupported stage name: MINE", Later("no installed plugin has this stage"), id="a stage of a plugin that is not installed"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "v0", "v1"), CASES)
@pytest.mark.parametrize("reader", [V0, V1], ids=["v0", "v1"])
def test_a_file_loads_where_upstream_loads_it(
    text: str, v0: str | Later, v1: str | Later, reader: Generation, catalog: Catalog
) -> None:
    expected = v0 if reader is V0 else v1
    match expected:
        case Later():
            warnings = read(text, catalog, reader).warnings
            assert [w for w in warnings if expected.what in str(w)], warnings
        case "":
            read(text, catalog, reader)
        case _:
            with pytest.raises(ConfigMistake) as caught:
                read(text, catalog, reader)
            assert expected in str(caught.value)


@pytest.mark.parametrize("reader", [V0, V1], ids=["v0", "v1"])
def test_the_values_are_those_of_upstream(reader: Generation, catalog: Catalog) -> None:
    def spec(text: str) -> ApplicationConfig:
        return read(kubernetes(text), catalog, reader)

    assert spec("{NAME: abc}").spec.name == "abc"
    assert spec("{Input: {NameSpace: x}}").spec.plugins["kubernetes"]["input"]["namespace"] == "x"
    assert spec("{planner: {alwaysUsePipeline: yes}}").spec.planner.always_use_pipeline
    assert spec("{name: a, name: b}").spec.name == "b"
    assert spec("{timeout: 10}").spec.timeout == Duration.of_nanoseconds(10)
    assert spec("{timeout: -5m}").spec.timeout == Duration(-300)
    zeros = spec("{timeout: 0s, trigger: {onOutOfSync: {minWindow: 0s}}}").spec
    assert zeros.timeout == Duration.parse("6h")
    assert zeros.trigger.on_out_of_sync.min_window == Duration.parse("5m")
    assert spec("{pipeline: {}}").spec.pipeline.stages == ()
    assert spec("{}").application_kind is not None


@pytest.mark.parametrize("reader", [V0, V1], ids=["v0", "v1"])
def test_the_options_of_stages_are_those_of_upstream(reader: Generation, catalog: Catalog) -> None:
    def options(text: str) -> object:
        return read(stage(text), catalog, reader).spec.pipeline.stages[0].with_

    assert options("name: WAIT") == {"duration": "1m0s"}
    assert options("name: WAIT_APPROVAL, with: {minApproverNum: 0}") == {"anyone": True, "minApproverNum": 1}  # fmt: skip
    two = options("name: K8S_CANARY_ROLLOUT, with: {replicas: 2.7}")
    assert isinstance(two, dict)
    assert two["replicas"] == "2"
