# SPDX-License-Identifier: Apache-2.0
"""The JSON Schema of a kind accepts the files that its reader accepts, and no others."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from pipecd.config.catalog import Catalog, load_catalog
from pipecd.config.read import read_file
from pipecd.config.schema import kinds_of, schema_of
from pipecd.config.yaml_tree import read_yaml, to_plain
from pipecd.model.errors import NotFound

CATALOG = load_catalog()
GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "configuration.md"
SAMPLES = re.findall(r"^```yaml\n(.*?)^```$", GUIDE.read_text(), re.M | re.S)
HEAD = "apiVersion: pipecd.dev/v1beta1\n"
PIPED = "projectID: p, pipedID: d, pipedKeyData: a, apiAddress: x"


@cache
def checker(kind: str) -> Any:
    return jsonschema.Draft202012Validator(schema_of(kind, CATALOG))


def errors(text: str) -> list[str]:
    value = to_plain(read_yaml(text))
    found: Any = checker(value["kind"]).iter_errors(value)
    return [str(e.message) for e in found]


@pytest.mark.parametrize("kind", kinds_of(CATALOG))
def test_every_kind_has_a_valid_schema(kind: str) -> None:
    schema = schema_of(kind, CATALOG)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["properties"]["kind"] == {"const": kind}


@pytest.mark.parametrize("sample", SAMPLES, ids=range(len(SAMPLES)))
def test_a_sample_of_the_guide_matches_its_schema(sample: str) -> None:
    assert errors(sample) == []


GOOD = [
    pytest.param("kind: KubernetesApp", id="no spec"),
    pytest.param("kind: KubernetesApp\nspec:", id="a null spec"),
    pytest.param("kind: KubernetesApp\nspec: {labels: ~, input: ~, pipeline: ~, name: ~}", id="null for absent"),
    pytest.param("kind: KubernetesApp\nspec: {timeout: 10, plugins: {}}", id="nanoseconds"),
    pytest.param("kind: KubernetesApp\nspec: {pipeline: {stages: [{name: WAIT}, {name: K8S_CANARY_ROLLOUT, with: {replicas: 50%}}]}}", id="stages of v0"),
    pytest.param("kind: KubernetesApp\nspec: {plugins: {kubernetes: {input: {}}}, pipeline: {stages: [{name: K8S_SYNC}, {name: K8S_MULTI_SYNC}]}}", id="stages and sections of plugins in a v0 kind"),
    pytest.param("kind: Application\nspec: {plugins: {mine: {a: b}, kubernetes: ~}, pipeline: {stages: [{name: MINE, with: 5}]}}", id="a plugin of a third party"),
    pytest.param("kind: Application\nspec: {pipeline: {stages: [{name: WAIT, with: {duration: 1h30m}}]}}", id="a stage of a plugin"),
    pytest.param(f"kind: Piped\nspec: {{{PIPED}, plugins: [{{name: kubernetes, deployTargets: [{{name: t, config: ~}}]}}]}}", id="a piped with plugins"),
    pytest.param(f"kind: Piped\nspec: {{{PIPED}, platformProviders: [{{name: t, type: KUBERNETES}}]}}", id="a piped of v0"),
]  # fmt: skip
BAD = [
    pytest.param("kind: KubernetesApp\nfoo: 1", id="an unknown key at the top"),
    pytest.param("kind: KubernetesApp\nspec: {foo: 1}", id="an unknown key"),
    pytest.param("kind: KubernetesApp\nspec: {input: {autoRollback: 'yes'}}", id="a string for a boolean"),
    pytest.param("kind: KubernetesApp\nspec: {timeout: 1d}", id="an unknown unit"),
    pytest.param("kind: KubernetesApp\nspec: {timeout: ~}", id="null for a duration"),
    pytest.param("kind: KubernetesApp\nspec: {pipeline: {stages: [{name: FOO}]}}", id="a stage that no plugin has"),
    pytest.param("kind: KubernetesApp\nspec: {plugins: {kubernetes: {inptu: {}}}}", id="an unknown key of a section of a v0 kind"),
    pytest.param("kind: KubernetesApp\nspec: {pipeline: {stages: [{name: K8S_CANARY_ROLLOUT, with: {replicas: few}}]}}", id="a wrong option of a stage"),
    pytest.param("kind: KubernetesApp\nspec: {pipeline: {stages: [{name: WAIT, witth: {}}]}}", id="an unknown key of a stage"),
    pytest.param("kind: KubernetesApp\nspec: {notification: {mentions: [{}]}}", id="something that must be set"),
    pytest.param("kind: Application\nspec: {plugins: {kubernetes: {inptu: {}}}}", id="an unknown key of a section"),
    pytest.param("kind: Application\nspec: {plugins: {mine: 5}}", id="a section that is not an object"),
    pytest.param("kind: Application\nspec: {pipeline: {stages: [{name: WAIT, with: {durations: 1m}}]}}", id="an unknown option of a plugin"),
    pytest.param("kind: Piped\nspec: {projectID: p}", id="a piped that does not say which"),
    pytest.param(f"kind: Piped\nspec: {{{PIPED}, platformProviders: [{{name: t, type: FOO}}]}}", id="an unknown platform"),
    pytest.param(f"kind: Piped\nspec: {{{PIPED}, plugins: [{{name: terraform, deployTargets: [{{name: t, config: {{foo: 1}}}}]}}]}}", id="an unknown key of a deploy target"),
    pytest.param("kind: EventWatcher\nspec: {events: {}}", id="an object for a list"),
]  # fmt: skip


@pytest.mark.parametrize("text", GOOD)
def test_a_valid_file_matches_the_schema(text: str, catalog: Catalog) -> None:
    read_file(HEAD + text, file="f.yaml", catalog=catalog)
    assert errors(HEAD + text) == []


@pytest.mark.parametrize("text", BAD)
def test_an_invalid_file_does_not_match_the_schema(text: str) -> None:
    assert errors(HEAD + text) != []


def test_another_api_version_does_not_match_the_schema() -> None:
    assert errors("apiVersion: v2\nkind: KubernetesApp") != []


def test_an_unknown_kind_has_no_schema() -> None:
    with pytest.raises(NotFound, match="no configuration file has the kind SealedSecret"):
        schema_of("SealedSecret", CATALOG)
