# SPDX-License-Identifier: Apache-2.0
"""Working copies that a killed piped has left, some of them with a program that still runs."""

import subprocess
from pathlib import Path

from pipecd.piped.deploy.context import remove_unused_sources
from pipecd.program.working_directories import working_directories


def test_only_copies_in_which_nothing_runs_are_removed(tmp_path: Path) -> None:
    copies = [tmp_path / "deployments" / id / "sources" / "stage" for id in ("one", "two")]
    for copy in copies:
        (copy / "shop").mkdir(parents=True)
        (copy / "shop" / "main.tf").write_text("here")
    script = "echo begun; read -r _; cat main.tf"
    pipe = subprocess.PIPE
    program = subprocess.Popen(
        ["sh", "-c", script], cwd=copies[1] / "shop", stdin=pipe, stdout=pipe
    )
    assert program.stdout is not None
    program.stdout.readline()
    remove_unused_sources(tmp_path, working_directories())
    assert not copies[0].exists()
    # The place is free for the copy of the next stage.
    assert not copies[1].exists()
    remove_unused_sources(tmp_path, working_directories())
    printed, _ = program.communicate(b"\n")
    assert printed == b"here"
    remove_unused_sources(tmp_path, working_directories())
    assert [*tmp_path.glob("deployments/*/*")] == []
