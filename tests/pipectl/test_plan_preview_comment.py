# SPDX-License-Identifier: Apache-2.0
"""Plan previews as comments on pull requests, and the CI templates that post them."""

import hashlib
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from pipecd.pipectl.plan_preview import plan_preview
from pipecd.pipectl.plan_preview_comment import MARKER, MAX_LENGTH, as_markdown
from pipecd.proto.model.planpreview_pb2 import (
    ApplicationPlanPreviewResult,
    PlanPreviewCommandResult,
    PluginPlanPreviewResult,
)

TEMPLATES = Path(__file__).parents[2] / "deploy" / "ci"


def app(name: str, details: str = "- a\n+ b", **more: Any) -> ApplicationPlanPreviewResult:
    result = PluginPlanPreviewResult(
        plugin_name="kubernetes",
        deploy_target="dev",
        plan_summary=b"1 changed manifest",
        plan_details=details.encode(),
    )
    return ApplicationPlanPreviewResult(
        application_name=name,
        application_url=f"https://cd.example/applications/{name}",
        plugin_names=["kubernetes"],
        plugin_plan_results=[result],
        **more,
    )


def comment(*apps: ApplicationPlanPreviewResult, error: str = "") -> str:
    result = PlanPreviewCommandResult(piped_name="edge", results=apps, error=error)
    return as_markdown([result], "0123456789")


def test_the_comment_links_to_the_console_of_each_piped() -> None:
    results = [
        PlanPreviewCommandResult(command_id=f"c{name}", piped_name=name, results=[app("web")])
        for name in ("a", "b_c", "old")
    ]
    pages = {f"c{name}": f"https://cd.example/plan-previews/c{name}" for name in ("a", "b_c")}
    links = (
        "[a](https://cd.example/plan-previews/ca), [b\\_c](https://cd.example/plan-previews/cb_c)"
    )
    text = as_markdown(results, "0123456789", pages)
    assert f"\n\nSee it in the console: {links}\n" in text
    assert "console" not in as_markdown(results, "0123456789")


def test_an_application_has_a_row_and_folded_details() -> None:
    text = comment(app("web", labels={"env": "dev"}))
    assert text.startswith(f"{MARKER}\n### Plan preview of `0123456`\n")
    link = "[web](https://cd.example/applications/web) (dev)"
    assert f"| {link} | AUTO | kubernetes (dev): 1 changed manifest |" in text
    assert "<details><summary>web</summary>\n\n```diff\n- a\n+ b\n```\n\n</details>" in text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(comment(), "No application changes: merging deploys nothing.", id="nothing"),
        pytest.param(as_markdown([], "0123456789"), "There is no preview: no enabled piped has this repository and base branch.", id="no piped"),
        pytest.param(comment(ApplicationPlanPreviewResult(application_name="job")), "| [job]() | AUTO | no preview |", id="plugins without previews"),
        pytest.param(comment(app("web", error="no chart")), "- :x: [web]", id="a failed one"),
        pytest.param(comment(error="broken"), "- :x: piped edge: broken", id="a failed piped"),
    ],
)  # fmt: skip
def test_other_results(text: str, expected: str) -> None:
    assert expected in text


@pytest.mark.parametrize(
    ("text", "forbidden"),
    [
        pytest.param(comment(app("web", "```\n</details>\n# Approved")), "\n```diff", id="a fence"),
        pytest.param(comment(app("<img src=x>")), "<img", id="HTML in a name"),
        pytest.param(comment(app("a|b")), "a|b", id="a column in a name"),
        pytest.param(comment(app("w", error="@everyone")), "@everyone", id="a mention"),
    ],
)
def test_content_cannot_leave_its_place(text: str, forbidden: str) -> None:
    assert forbidden not in text


def test_a_comment_is_as_long_as_hosts_accept() -> None:
    text = comment(*(app(f"app-{number}", "+ line\n" * 5000) for number in range(20)))
    assert len(text) <= MAX_LENGTH
    assert "the rest is in the log of the job" in text
    assert text.count("</details>") == 20


@pytest.mark.parametrize("template", sorted(TEMPLATES.glob("*.yaml")), ids=lambda path: path.name)
def test_a_template_is_yaml_and_its_command_is_one(template: Path) -> None:
    assert yaml.safe_load(template.read_text())
    [line] = re.findall(r"pipectl plan-preview (.+)", template.read_text())
    words = shlex.split(line)
    context = click.Context(plan_preview)
    plan_preview.make_parser(context).parse_args(list(words))
    given = {word for word in words if word.startswith("--")}
    required = {o.opts[0] for o in plan_preview.params if o.required}
    assert required <= given
    assert MARKER in template.read_text()


def github_step(template: Path) -> str:
    [job] = yaml.safe_load(template.read_text())["jobs"].values()
    return next(step["run"] for step in job["steps"] if step["name"] == "Get pipectl")


def gitlab_step(template: Path) -> str:
    return "\n".join(yaml.safe_load(template.read_text())["plan-preview"]["before_script"])


@pytest.mark.parametrize(
    ("template", "step"),
    [
        pytest.param("github-plan-preview.yaml", github_step, id="GitHub"),
        pytest.param("gitlab-plan-preview.yaml", gitlab_step, id="GitLab"),
    ],
)
def test_a_template_gets_pipectl_and_checks_it(
    template: str, step: Callable[[Path], str], tmp_path: Path
) -> None:
    program = tmp_path / "pipectl_v0.1.0"
    program.write_text("#!/bin/sh\necho it runs\n")
    path_file = tmp_path / "path"

    def run_step(name: str, checksum: str) -> subprocess.CompletedProcess[str]:
        """Runs the commands as the CI does, and then pipectl from the PATH that follows."""
        place = tmp_path / name
        place.mkdir()
        url, path = program.as_uri(), "/usr/local/bin:/usr/bin:/bin"
        script = f"""set -e
{step(TEMPLATES / template)}
if [ -f {path_file} ]; then PATH="$(cat {path_file}):$PATH"; fi
pipectl
"""
        return subprocess.run(
            ["sh", "-c", script],
            cwd=place,
            env={
                "URL": url, "SHA256": checksum, "PIPECTL_URL": url, "PIPECTL_SHA256": checksum,
                "RUNNER_TEMP": str(place), "GITHUB_PATH": str(path_file), "PATH": path,
            },
            capture_output=True,
            text=True,
            check=False,
        )  # fmt: skip

    right = run_step("right", hashlib.sha256(program.read_bytes()).hexdigest())
    assert (right.returncode, right.stdout) == (0, "it runs\n"), right.stderr
    wrong = run_step("wrong", "0" * 64)
    assert (wrong.returncode != 0, "it runs" in wrong.stdout) == (True, False)
