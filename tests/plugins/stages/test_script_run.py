# SPDX-License-Identifier: Apache-2.0
"""Scripts, as a real piped runs, undoes and stops them."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipecd.model.application import ApplicationKind
from pipecd.model.deployment import DeploymentStatus
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


async def test_what_was_begun_is_undone_in_the_order_of_the_pipeline(
    installation: Any, tmp_path: Path
) -> None:
    trace = tmp_path / "trace"
    app = APP + "".join(
        (
            stage("first", f"echo first >> {trace}", trace),
            stage("second", f"echo second >> {trace}; echo no luck; exit 3", trace),
            stage("third", f"echo third >> {trace}", trace),
        )
    )
    async with installation() as own, own.piped():
        commit = own.push(app)
        done = await own.finished(commit)
        assert DeploymentStatus(done.status) is DeploymentStatus.FAILURE
        assert own.statuses(done) == [
            "SCRIPT_RUN SUCCESS",
            "SCRIPT_RUN FAILURE",
            "SCRIPT_RUN NOT_STARTED_YET",
            "SCRIPT_RUN_ROLLBACK SUCCESS",
            "SCRIPT_RUN_ROLLBACK SUCCESS",
            "SCRIPT_RUN_ROLLBACK SUCCESS",
        ]
        assert await own.lines(done, done.stages[1]) == [
            "no luck", "The script exited with code 3: no luck"
        ]  # fmt: skip
        told = "The script was never started, there is nothing to undo"
        assert await own.lines(done, done.stages[5]) == [told]
    assert trace.read_text().splitlines() == [
        "first", "second", "undo first true", "undo second true"
    ]  # fmt: skip


async def test_a_script_that_takes_too_long_is_ended_with_all_it_has_started(
    installation: Any, tmp_path: Path
) -> None:
    script = "(trap '' TERM HUP; sleep 300) & echo $! >> $PIDS; sleep 300 & echo $! >> $PIDS; wait"
    app = f"{APP}      - {{name: SCRIPT_RUN, timeout: 1s, with: {{run: {json.dumps(script)}}}}}\n"
    pids = tmp_path / "pids"
    async with installation() as own, own.piped(PIDS=str(pids)):
        done = await own.finished(own.push(app))
        assert own.statuses(done) == ["SCRIPT_RUN FAILURE"]
        assert DeploymentStatus(done.status) is DeploymentStatus.FAILURE
        assert await own.lines(done, done.stages[0]) == ["Timed out after 1s"]
        started = pids.read_text().split()
        assert len(started) == 2
        assert [pid for pid in started if is_running(int(pid))] == []


async def test_an_older_file_still_runs_its_custom_sync(installation: Any, tmp_path: Path) -> None:
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
    async with installation(ApplicationKind.LAMBDA) as own, own.piped():
        done = await own.finished(own.push(app))
        assert DeploymentStatus(done.status) is DeploymentStatus.SUCCESS
        assert await own.lines(done, done.stages[0]) == [
            "deployed by hand", "The script succeeded"
        ]  # fmt: skip
    assert (tmp_path / "where").read_text().rstrip().endswith("/shop")


async def test_a_stage_may_be_skipped_by_its_commit(installation: Any, tmp_path: Path) -> None:
    app = f"""{APP}\
      - name: SCRIPT_RUN
        skipOn: {{paths: ["shop/docs/**"], commitMessagePrefixes: ["[skip]"]}}
        with: {{run: "echo ran >> {tmp_path / "trace"}"}}
"""
    async with installation() as own, own.piped():
        first = await own.finished(own.push(app, "the first"))
        docs = await own.finished(own.push(app, "more words", **{"shop/docs/a.md": "words"}))
        told = await own.finished(own.push(app, "[skip] code", **{"shop/code": "1"}))
        code = await own.finished(own.push(app, "code", **{"shop/code": "2"}))
        assert [own.statuses(d) for d in (first, docs, told, code)] == [
            ["SCRIPT_RUN SUCCESS"],
            ["SCRIPT_RUN SKIPPED"],
            ["SCRIPT_RUN SKIPPED"],
            ["SCRIPT_RUN SUCCESS"],
        ]
        lines = await own.lines(docs, docs.stages[0])
        assert lines[0].startswith("Skipped because ")
    assert (tmp_path / "trace").read_text() == "ran\nran\n"
