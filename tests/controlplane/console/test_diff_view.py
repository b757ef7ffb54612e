# SPDX-License-Identifier: Apache-2.0
"""Diffs of every platform by resource, folded and side by side."""

import pytest

from pipecd.controlplane.console.diff_view import (
    ChangeCounts,
    ChangeKind,
    DiffLine,
    DiffView,
    LineKind,
    drift_view,
    preview_view,
)
from pipecd.controlplane.console.status_badge import Tone

HEAD = "Diff between the defined state in Git at commit 7f3c91a and actual state in cluster:"
SIDES = "\n\n--- Actual   (LiveState)\n+++ Expected (Git)\n\n"

KUBERNETES = f"""{HEAD}{SIDES}\
- 1. name="old", kind="ConfigMap", namespace="shop", apiVersion="v1"

+ 2. name="web", kind="Service", namespace="shop", apiVersion="v1"

# 3. name="web", kind="Deployment", namespace="shop", apiVersion="apps/v1"

  spec:
    #spec.replicas
-   replicas: 5
+   replicas: 2

    template:
      spec:
        containers:
          -
            #spec.template.spec.containers.0.image
-           image: web:1
+           image: web:2

... (omitted 2 other changed manifests)
"""

TERRAFORM = f"""{HEAD}{SIDES}\
  # module.cdn["eu"].aws_x.y will be updated in-place
    resource "aws_x" "y" {{
        id   = "1"
~       name = "a" -> "b"
    }}
  # aws_z.w must be replaced
    resource "aws_z" "w" {{
-       id = "9"
    }}
  # aws_z.v will be created
    resource "aws_z" "v" {{
+       id = (known after apply)
        # (2 unchanged attributes hidden)
    }}
Plan: 2 to add, 1 to change, 1 to destroy.
"""

ECS = f"""{HEAD}{SIDES}\
  ServiceDefinition:
    #ServiceDefinition.DesiredCount
-   DesiredCount: 3
+   DesiredCount: 2

  TaskDefinition:
    ContainerDefinitions:
      -
        #TaskDefinition.ContainerDefinitions.0.Cpu
-       Cpu: 256
+       Cpu: 512

"""

LAMBDA = f"""{HEAD}{SIDES}\
  spec:
    #spec.memory
-   memory: 512
+   memory: 1024

"""


def outline(view: DiffView) -> list[tuple[str, str, str, str]]:
    return [
        (s.change.value, s.kind, s.name, f"-{s.removed} +{s.added} ~{s.changed}")
        for s in view.sections
    ]


@pytest.mark.parametrize(
    ("text", "summary", "sections"),
    [
        pytest.param(
            KUBERNETES,
            "1 in Git only, 1 not in Git, 1 different",
            [
                ("remove", "ConfigMap", "old", "-0 +0 ~0"),
                ("add", "Service", "web", "-0 +0 ~0"),
                ("change", "Deployment", "web", "-2 +2 ~0"),
            ],
            id="manifests of Kubernetes have numbers",
        ),
        pytest.param(
            TERRAFORM,
            "1 in Git only, 2 different",
            [
                ("change", "aws_x", 'module.cdn["eu"].aws_x.y', "-0 +0 ~1"),
                ("replace", "aws_z", "aws_z.w", "-1 +0 ~0"),
                ("add", "aws_z", "aws_z.v", "-0 +1 ~0"),
            ],
            id="resources of a Terraform plan have comments",
        ),
        pytest.param(
            ECS,
            "2 different",
            [
                ("change", "", "ServiceDefinition", "-1 +1 ~0"),
                ("change", "", "TaskDefinition", "-1 +1 ~0"),
            ],
            id="an ECS application has two definitions",
        ),
        pytest.param(
            LAMBDA, "1 different", [("change", "", "", "-1 +1 ~0")], id="a function is one resource"
        ),
    ],
)
def test_a_drift_is_shown_by_resource(
    text: str, summary: str, sections: list[tuple[str, str, str, str]]
) -> None:
    view = drift_view(text)
    assert outline(view) == sections
    assert view.summary == summary
    assert view.note.startswith("Diff between the defined state in Git at commit 7f3c91a")
    assert view.raw == text


def test_what_a_piped_left_out_is_said() -> None:
    assert drift_view(KUBERNETES).omitted == "omitted 2 other changed manifests"
    long = KUBERNETES + "+ x\n" * 6000
    assert drift_view(long).omitted == "1,025 more lines are not shown"


def test_lists_of_yaml_are_no_removed_lines() -> None:
    deployment = drift_view(KUBERNETES).sections[2]
    lines = [line for block in deployment.blocks for line in block.lines]
    dash = next(line for line in lines if line.text.strip() == "-")
    assert dash.kind is LineKind.SAME
    assert [line.text.strip() for line in lines if line.kind is LineKind.REMOVE] == [
        "replicas: 5",
        "image: web:1",
    ]


def test_the_clusters_of_an_application_are_kept_apart() -> None:
    view = drift_view(f"tokyo: {KUBERNETES}\nosaka: {KUBERNETES}")
    assert [section.target for section in view.sections] == ["tokyo"] * 3 + ["osaka"] * 3
    assert len({section.anchor for section in view.sections}) == 6


def test_sentences_are_findings() -> None:
    view = drift_view("commit 1111111 runs, and commit 2222222 of Git differs in command\nweb-1 x")
    assert view.findings == (
        "Commit 1111111 runs, and commit 2222222 of Git differs in command.",
        "web-1 x.",
    )
    assert not view.sections
    assert not drift_view("")


def test_a_list_of_files_names_each_and_says_which_settings_change() -> None:
    """As the process plugin previews them."""
    view = preview_view("~ run.sh\n- a\n+ conf/app one.toml\nreplicas: 1 → 2\nenv.TOKEN is added")
    assert outline(view) == [
        ("change", "File", "run.sh", "-0 +0 ~0"),
        ("remove", "File", "a", "-0 +0 ~0"),
        ("add", "File", "conf/app one.toml", "-0 +0 ~0"),
    ]
    assert not any(section.is_open for section in view.sections)
    assert view.summary == "1 added, 1 deleted, 1 changed"
    assert view.findings == ("replicas: 1 → 2.", "env.TOKEN is added.")


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("- replicas: 5\n+ replicas: 2", id="fields"),
        pytest.param("- size = 5\n+ size = 2", id="assignments"),
        pytest.param("  hosts:\n- one\n+ two", id="lines around those that differ"),
        pytest.param("--- Last Deploy\n+++ Head Commit\n- one\n+ two", id="two sides"),
    ],
)
def test_differences_are_no_list_of_files(text: str) -> None:
    view = preview_view(text)
    assert [section.kind for section in view.sections] == [""]
    assert not view.findings


def test_changes_stand_side_by_side() -> None:
    _, _, deployment = drift_view(KUBERNETES).sections
    pairs = [pair for block in deployment.blocks for pair in block.pairs]
    changed = [
        (pair.old.text.strip(), pair.new.text.strip())
        for pair in pairs
        if pair.old and pair.new and pair.old.kind is LineKind.REMOVE
    ]
    assert changed == [("replicas: 5", "replicas: 2"), ("image: web:1", "image: web:2")]
    attribute = drift_view(TERRAFORM).sections[0].blocks[0].pairs[2]
    assert attribute.old
    assert attribute.new
    assert (attribute.old.text.strip(), attribute.new.text.strip()) == (
        'name = "a"',
        'name = "b"',
    )
    replaced = drift_view(TERRAFORM).sections[1].blocks[0].pairs[1]
    assert replaced.old
    assert replaced.new is None


def test_a_preview_of_terraform_is_the_plan_itself() -> None:
    view = preview_view("""\
# change aws_x.y
# create aws_z.w

Terraform will perform the following actions:

  # aws_x.y will be updated in-place
  ~ resource "aws_x" "y" {
        id   = "1"
      ~ name = "a" -> "b"
    }

  # aws_z.w will be created
  + resource "aws_z" "w" {
      + id = (known after apply)
    }

Plan: 1 to add, 1 to change, 0 to destroy.
""")
    assert outline(view) == [
        ("change", "aws_x", "aws_x.y", "-0 +0 ~2"),
        ("add", "aws_z", "aws_z.w", "-0 +2 ~0"),
    ]
    assert [section.badge.text for section in view.sections] == ["Changed", "Added"]
    assert view.summary == "1 added, 1 changed"


def test_a_unified_diff_is_by_file_and_its_long_unchanged_parts_are_folded() -> None:
    same = "".join(f" line {n}\n" for n in range(20))
    view = preview_view(
        f"--- taskdef (running)\n+++ taskdef (target)\n@@ -1 +1 @@\n-cpu: 1\n+cpu: 2\n{same}-x\n"
    )
    (section,) = view.sections
    assert (section.name, section.change) == ("taskdef", ChangeKind.CHANGE)
    assert [(block.is_folded, len(block.lines)) for block in section.blocks] == [
        (False, 5),
        (True, 16),
        (False, 3),
    ]


def test_only_the_first_resource_of_a_long_diff_is_open() -> None:
    lines = "+ x: 1\n" * 100
    one = '# 1. name="a", kind="K", namespace="", apiVersion="v1"\n'
    assert [section.is_open for section in drift_view(one + lines).sections] == [True]
    two = one + lines + one.replace('"a"', '"b"') + lines
    assert [section.is_open for section in drift_view(two).sections] == [True, False]


def test_a_resource_with_a_name_of_ten_thousand_characters_is_a_resource_of_its_own() -> None:
    one = '# 1. name="a", kind="K", namespace="", apiVersion="v1"\n+ x: 1\n'
    two = f'+ 2. name="{"n" * 10_000}", kind="K", namespace="", apiVersion="v1"\n'
    view = preview_view(one + two)
    assert [section.change for section in view.sections] == [ChangeKind.CHANGE, ChangeKind.ADD]
    assert len(view.sections[1].name) == 501


def test_resources_of_the_same_name_have_addresses_of_their_own() -> None:
    one = '# 1. name="a", kind="K", namespace="", apiVersion="v1"\n+ x: 1\n'
    anchors = [section.anchor for section in preview_view(one + one).sections]
    assert anchors[0] != anchors[1]
    assert preview_view(one).sections[0].anchor == anchors[0]
    assert preview_view(one, scope="other").sections[0].anchor != anchors[0]


@pytest.mark.parametrize(
    "reason",
    [
        pytest.param("must be replaced", id="an argument forces it"),
        pytest.param("is tainted, so must be replaced", id="it is tainted"),
        pytest.param("will be replaced, as requested", id="somebody requested it"),
    ],
)
def test_a_resource_that_a_plan_replaces_is_neither_changed_nor_harmless(reason: str) -> None:
    view = preview_view(
        f"  # aws_instance.web {reason}\n"
        '-/+ resource "aws_instance" "web" {\n'
        '      ~ ami = "ami-1" -> "ami-2" # forces replacement\n'
        "    }\n"
    )
    assert outline(view) == [("replace", "aws_instance", "aws_instance.web", "-0 +0 ~1")]
    (section,) = view.sections
    assert (section.badge.text, section.badge.tone) == ("Replaced", Tone.BAD)
    assert (view.counts, view.summary) == (ChangeCounts(replaced=1), "1 replaced")
    lines = [line for block in section.blocks for line in block.lines]
    assert [line.kind for line in lines] == [LineKind.REPLACE, LineKind.CHANGE, LineKind.SAME]
    assert lines[0].text == '-/+ resource "aws_instance" "web" {'
    pair = section.blocks[0].pairs[0]
    assert pair.old == DiffLine(LineKind.REMOVE, ' resource "aws_instance" "web" {')
    assert pair.new == DiffLine(LineKind.ADD, ' resource "aws_instance" "web" {')
