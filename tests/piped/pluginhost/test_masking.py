# SPDX-License-Identifier: Apache-2.0
"""Secrets are masked in stage logs, however their lines are split into requests."""

from collections.abc import Sequence
from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st

from pipecd.piped.pluginhost.masking import LogMasker, SecretMasks
from pipecd.proto.model.logblock_pb2 import LogBlock, LogSeverity
from pipecd.secrets.masking import MASK


def masked(*secrets: str) -> LogMasker:
    masks = SecretMasks()
    masks.add("d1", secrets)
    return LogMasker(masks, "d1")


def blocks(lines: Sequence[str], first: int = 1) -> list[LogBlock]:
    return [LogBlock(index=i, log=line, created_at=5) for i, line in enumerate(lines, first)]


def shown(log: LogMasker, lines: Sequence[str], first: int = 1, *, is_end: bool = False) -> list[str]:  # fmt: skip
    return [block.log for block in log.hide(blocks(lines, first), is_end=is_end)]


def test_secrets_are_masked_for_their_own_deployment_only() -> None:
    masks = SecretMasks()
    masks.add("d1", ["hunter22"])
    masks.add("d1", ["swordfish"])
    assert masks.hide("d1", "hunter22 swordfish") == f"{MASK} {MASK}"
    assert masks.hide("d2", "hunter22") == "hunter22"
    masks.forget("d1")
    assert masks.hide("d1", "hunter22") == "hunter22"


def test_a_block_keeps_everything_but_its_text() -> None:
    severity = LogSeverity.ERROR
    given = LogBlock(index=7, log="a hunter22", severity=severity, created_at=9)
    (hidden,) = masked("hunter22").hide([given])
    assert hidden == LogBlock(index=7, log=f"a {MASK}", severity=severity, created_at=9)


def test_a_secret_that_spans_two_requests_is_masked_in_both() -> None:
    log = masked("hunter22")
    assert shown(log, ["first", "the hunt"]) == ["first", f"the {MASK}"]
    assert shown(log, ["er22 is", "last"], 3) == [f"{MASK} is", "last"]


def test_a_word_that_only_began_like_a_secret_appears_with_the_next_lines() -> None:
    log = masked("hunter22")
    assert shown(log, ["the hunter"]) == [f"the {MASK}"]
    assert shown(log, ["the hunter", "went"]) == ["the hunter", "went"], "sent again with more"
    assert shown(log, ["and the hunter"], 3, is_end=True) == ["and the hunter"]


def test_a_repeated_request_is_masked_again() -> None:
    log = masked("hunter22")
    shown(log, ["the hunt"])
    for _ in range(2):
        assert shown(log, ["er22 is", "x"], 2) == [f"{MASK} is", "x"]


def test_lines_that_do_not_follow_each_other_are_masked_separately() -> None:
    log = masked("hunter22")
    shown(log, ["a", "b", "the hunt"], 10)
    assert shown(log, ["er22 is"], 5) == ["er22 is"]


@given(st.text("hunter2", max_size=30), st.data())
@settings(deadline=None)
def test_no_secret_passes_unmasked(noise: str, data: st.DataObject) -> None:
    text = f"{noise}hunter22{noise}hunter22"
    log, index, seen = masked("hunter22"), count(1), ""
    while text:
        lines: list[str] = []
        for size in data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=3)):
            lines, text = [*lines, text[:size]], text[size:]
        request = [LogBlock(index=next(index), log=line) for line in lines if line]
        seen += "".join(block.log for block in log.hide(request))
    assert "hunter22" not in seen


def test_the_log_of_piped_masks_secrets_of_ended_deployments_too() -> None:
    masks = SecretMasks()
    masks.add("d1", ["hunter22"])
    masks.add("d2", ["swordfish"])
    masks.forget("d1")
    assert masks.all.hide("hunter22 swordfish") == f"{MASK} {MASK}"
