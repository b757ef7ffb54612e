# SPDX-License-Identifier: Apache-2.0
"""Logs have the encodings of upstream."""

import io
import json

import pytest
import structlog

from pipecd.model.errors import UserMistake
from pipecd.observe import log


def written(encoding: str, level: str = "info") -> str:
    out = io.StringIO()
    log.configure(level, encoding, program="piped", to=out)
    logger = structlog.get_logger()
    logger.debug("too quiet")
    logger.info("stage started", stage="WAIT")
    return out.getvalue()


def test_humanize_is_the_message_a_tab_and_the_fields() -> None:
    assert written("humanize") == 'stage started\t{"stage": "WAIT"}\n'


def test_json_carries_severity_time_service_and_fields() -> None:
    record = json.loads(written("json"))
    assert record["severity"] == "INFO"
    assert record["message"] == "stage started"
    assert record["stage"] == "WAIT"
    assert record["serviceContext"]["service"] == "piped"
    assert isinstance(record["eventTime"], float)


def test_console_names_level_and_fields() -> None:
    assert "stage started" in written("console")
    assert "stage=WAIT" in written("console")


def test_a_lower_level_shows_more() -> None:
    assert "too quiet" in written("humanize", "debug")


@pytest.mark.parametrize(("level", "encoding"), [("loud", "json"), ("info", "xml")])
def test_an_unknown_level_or_encoding_is_refused_with_the_valid_ones(
    level: str, encoding: str
) -> None:
    with pytest.raises(UserMistake, match="use "):
        log.configure(level, encoding)


def test_secrets_are_masked_while_the_block_runs() -> None:
    out = io.StringIO()
    log.configure(encoding="humanize", to=out)
    logger = structlog.get_logger()
    with log.masking(lambda text: text.replace("hunter22", "******")):
        try:
            int("hunter22")
        except ValueError as e:
            logger.exception("login with hunter22", error=e, tried=["hunter22"], times=3)
    assert "hunter22" not in out.getvalue()
    assert '"times": 3' in out.getvalue()
    logger.info("hunter22")
    assert out.getvalue().endswith("hunter22\n")
