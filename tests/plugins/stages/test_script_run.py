# SPDX-License-Identifier: Apache-2.0
"""The stage SCRIPT_RUN of a piped process: scripts, rollback scripts and timeouts."""

import json
from pathlib import Path

import pytest

from pipecd.model.application import ApplicationKind
from pipecd.model.deployment import DeploymentStatus
from plugins.stages.conftest import OpenScene
from servers.control_plane import stage_statuses
from servers.server import is_running

pytestmark = pytest.mark.slow

APP = """\
apiVersion: pipecd.dev/v1beta1
kind: Application
spec:
  name: shop
  labels: {env: prod}
  pipeline:
    stages:
"""


def stage(name: str, run: str, trace: Path, *, undo: str = "") -> str:
    undo = undo or f"echo undo {name} $SR_IS_ROLLBACK >> {trace}"
    return f"""\
      - name: SCRIPT_RUN
        desc: {name}
        with:
          run: {json.dumps(run)}
          onRollback: {json.dumps(undo)}
"""


async def test_started_scripts_are_rolled_back_in_the_order_of_the_pipeline(
    open_scene: OpenScene, tmp_path: Path
) -> None:
    trace = tmp_path / "trace"
    app = APP + "".join(
        (
            stage("first", f"echo first >> {trace}", trace),
            stage("second", f"echo second >> {trace}; echo no luck; exit 3", trace),
            stage("third", f"echo third >> {trace}", trace),
        )
    )
    async with open_scene() as scene, scene.piped():
        commit = scene.push(app)
        done = await scene.completed(commit)
        assert DeploymentStatus(done.status) is DeploymentStatus.FAILURE
        assert stage_statuses(done) == [
            "SCRIPT_RUN SUCCESS",
            "SCRIPT_RUN FAILURE",
            "SCRIPT_RUN NOT_STARTED_YET",
            "SCRIPT_RUN_ROLLBACK SUCCESS",
            "SCRIPT_RUN_ROLLBACK SUCCESS",
            "SCRIPT_RUN_ROLLBACK SUCCESS",
        ]
        assert await scene.log_lines(done, done.stages[1]) == [
            "no luck", "The script exited with code 3: no luck"
        ]  # fmt: skip
        assert await scene.log_lines(done, done.stages[5]) == [
            "The script was never started, there is nothing to undo"
        ]
    assert trace.read_text().splitlines() == [
        "first", "second", "undo first true", "undo second true"
    ]  # fmt: skip


async def test_a_timeout_kills_a_script_with_its_child_processes(
    open_scene: OpenScene, tmp_path: Path
) -> None:
    script = "(trap '' TERM HUP; sleep 300) & echo $! >> $PIDS; sleep 300 & echo $! >> $PIDS; wait"
    app = f"{APP}      - {{name: SCRIPT_RUN, timeout: 1s, with: {{run: {json.dumps(script)}}}}}\n"
    pids = tmp_path / "pids"
    async with open_scene() as scene, scene.piped(PIDS=str(pids)):
        done = await scene.completed(scene.push(app))
        assert stage_statuses(done) == ["SCRIPT_RUN FAILURE"]
        assert DeploymentStatus(done.status) is DeploymentStatus.FAILURE
        assert await scene.log_lines(done, done.stages[0]) == ["Timed out after 1s"]
        started = pids.read_text().split()
        assert len(started) == 2
        assert [pid for pid in started if is_running(int(pid))] == []


async def test_a_v0_custom_sync_runs_its_script(open_scene: OpenScene, tmp_path: Path) -> None:
    app = f"""\
apiVersion: pipecd.dev/v1beta1
kind: LambdaApp
spec:
  name: shop
  input: {{functionManifestFile: function.yaml}}
  pipeline:
    stages:
      - name: CUSTOM_SYNC
        with:
          timeout: 1m
          envs: {{WHERE: {tmp_path / "where"}}}
          run: pwd > $WHERE && echo deployed by hand
"""
    async with open_scene(ApplicationKind.LAMBDA) as scene, scene.piped():
        done = await scene.completed(scene.push(app))
        assert DeploymentStatus(done.status) is DeploymentStatus.SUCCESS
        assert await scene.log_lines(done, done.stages[0]) == [
            "deployed by hand", "The script succeeded"
        ]  # fmt: skip
    assert (tmp_path / "where").read_text().rstrip().endswith("/shop")


async def test_a_commit_skips_a_stage_by_paths_or_message(
    open_scene: OpenScene, tmp_path: Path
) -> None:
    app = f"""{APP}\
      - name: SCRIPT_RUN
        skipOn: {{paths: ["shop/docs/**"], commitMessagePrefixes: ["[skip]"]}}
        with: {{run: "echo ran >> {tmp_path / "trace"}"}}
"""
    async with open_scene() as scene, scene.piped():
        first = await scene.completed(scene.push(app, "the first"))
        docs = await scene.completed(scene.push(app, "docs", **{"shop/docs/a.md": "text"}))
        message = await scene.completed(scene.push(app, "[skip] code", **{"shop/code": "1"}))
        code = await scene.completed(scene.push(app, "code", **{"shop/code": "2"}))
        assert [stage_statuses(d) for d in (first, docs, message, code)] == [
            ["SCRIPT_RUN SUCCESS"],
            ["SCRIPT_RUN SKIPPED"],
            ["SCRIPT_RUN SKIPPED"],
            ["SCRIPT_RUN SUCCESS"],
        ]
        lines = await scene.log_lines(docs, docs.stages[0])
        assert lines[0].startswith("Skipped because ")
    assert (tmp_path / "trace").read_text() == "ran\nran\n"
