# SPDX-License-Identifier: Apache-2.0
"""Stage logs are spooled on disk until the control plane has received them."""

from pathlib import Path
from typing import NoReturn

import pytest

from pipecd.piped.pluginhost.masking import LogMasker, SecretMasks
from pipecd.piped.pluginhost.stage_logs import LogSpool, read_spool
from pipecd.proto.model.logblock_pb2 import LogBlock


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deployment" / "stage"


@pytest.fixture
def spool(path: Path) -> LogSpool:
    """A spool that holds four lines."""
    spool = LogSpool(path, LogMasker(SecretMasks(), "deployment"))
    for index in range(4):
        spool.add(LogBlock(index=index, log=f"line {index}\n"))
    return spool


def lines(path: Path) -> list[int]:
    return [block.index for block in read_spool(path)]


def test_lines_are_spooled_until_the_control_plane_has_received_them(
    spool: LogSpool, path: Path
) -> None:
    assert lines(path) == [0, 1, 2, 3]
    spool.forget_through(1)
    assert lines(path) == [2, 3]
    spool.add(LogBlock(index=4, log="line 4\n"))
    assert lines(path) == [2, 3, 4]
    spool.forget_through(4)
    assert lines(path) == []


def test_a_kill_while_lines_are_dropped_leaves_the_others(
    spool: LogSpool, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object, **__: object) -> NoReturn:
        raise SystemExit

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", killed)
        with pytest.raises(SystemExit):
            spool.forget_through(1)
    assert lines(path)[-2:] == [2, 3]


def test_a_spool_that_cannot_be_written_fails_no_stage(tmp_path: Path) -> None:
    (tmp_path / "deployment").write_text("a file in its place")
    spool = LogSpool(tmp_path / "deployment" / "stage", LogMasker(SecretMasks(), "deployment"))
    spool.add(LogBlock(index=0, log="line\n"))
    spool.forget_through(0)
