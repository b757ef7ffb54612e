# SPDX-License-Identifier: Apache-2.0
"""Piped reads its secrets from files and from base64."""

import base64
from pathlib import Path

import pytest

from pipecd.config.piped import (
    GitSpec,
    KeyPair,
    PipedSpec,
    PreviousKeySpec,
    SecretManagementConfig,
    git_password,
    key_pair,
    piped_key,
    previous_key,
    slack_token,
    ssh_key,
    webhook_signature,
)
from pipecd.config.piped_notifications import SlackSpec, WebhookSpec
from pipecd.model.errors import UserMistake


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def piped(*, file: str = "", data: str = "") -> PipedSpec:
    return PipedSpec(
        project_id="p", piped_id="i", api_address="a", piped_key_file=file, piped_key_data=data
    )


def test_the_piped_key_is_read_from_its_file_without_the_newline(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("the-key\n")
    assert piped_key(piped(file=str(tmp_path / "key"))) == "the-key"


def test_the_piped_key_is_decoded() -> None:
    assert piped_key(piped(data=encoded("the-key\n"))) == "the-key"


def test_base64_may_have_line_breaks() -> None:
    text = encoded("a-rather-long-key")
    assert piped_key(piped(data=f"{text[:8]}\n{text[8:]}\n")) == "a-rather-long-key"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        pytest.param(
            piped(file="/nowhere/key"),
            "pipedKeyFile: cannot read /nowhere/key: No such file or directory",
            id="a missing file",
        ),
        pytest.param(piped(data="not base64!"), "pipedKeyData: the value is not base64", id="text"),
        pytest.param(piped(data="YQ"), "pipedKeyData: the value is not base64", id="no padding"),
        pytest.param(piped(data="/w=="), "the value is not text in UTF-8", id="bytes"),
        pytest.param(piped(data="Cg=="), "the value is empty", id="white space"),
    ],
)
def test_a_piped_key_is_refused_that_is(spec: PipedSpec, message: str) -> None:
    with pytest.raises(UserMistake, match=message):
        piped_key(spec)


def test_the_error_does_not_repeat_the_secret() -> None:
    with pytest.raises(UserMistake) as caught:
        piped_key(piped(data="s3cret!"))
    assert "s3cret" not in str(caught.value)


def test_the_ssh_key_is_read_unchanged(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"-----BEGIN\n")
    assert ssh_key(GitSpec(ssh_key_file=str(tmp_path / "key"))) == b"-----BEGIN\n"
    assert ssh_key(GitSpec(ssh_key_data=encoded("-----BEGIN\n"))) == b"-----BEGIN\n"
    assert ssh_key(GitSpec()) == b""


def test_the_git_password_is_decoded() -> None:
    assert git_password(GitSpec(username="u", password=encoded("pw"))) == "pw"
    assert git_password(GitSpec()) == ""


def test_the_slack_token_comes_from_one_of_three_keys(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("xoxb-1\n")
    assert slack_token(SlackSpec(channel_id="c", oauth_token="xoxb-1")) == "xoxb-1"
    assert slack_token(SlackSpec(channel_id="c", oauth_token_data=encoded("xoxb-1"))) == "xoxb-1"
    in_file = SlackSpec(channel_id="c", oauth_token_file=str(tmp_path / "token"))
    assert slack_token(in_file) == "xoxb-1"
    assert slack_token(SlackSpec(hook_url="https://h")) == ""


def test_only_the_last_newline_of_a_webhook_signature_is_removed(tmp_path: Path) -> None:
    (tmp_path / "signature").write_text(" sig \n\n")
    in_file = WebhookSpec(signature_value_file=str(tmp_path / "signature"))
    assert webhook_signature(in_file) == " sig \n"
    assert webhook_signature(WebhookSpec(signature_value="sig")) == "sig"
    assert webhook_signature(WebhookSpec()) == ""


def test_two_webhook_signatures_are_refused() -> None:
    with pytest.raises(UserMistake, match="only either signatureValue or signatureValueFile"):
        webhook_signature(WebhookSpec(signature_value="a", signature_value_file="b"))


def test_the_key_pair_of_secret_management_is_read(tmp_path: Path) -> None:
    (tmp_path / "private").write_text("PRIVATE\n")
    config = SecretManagementConfig(
        private_key_file=str(tmp_path / "private"), public_key_data=encoded("PUBLIC\n")
    )
    pair = key_pair(config)
    assert pair == KeyPair(private=b"PRIVATE", public=b"PUBLIC")
    assert "PRIVATE" not in repr(pair)


def test_a_previous_key_is_read(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("OLD\n")
    assert previous_key(PreviousKeySpec(private_key_file=str(tmp_path / "old"))) == b"OLD"
    assert previous_key(PreviousKeySpec(private_key_data=encoded("OLD\n"))) == b"OLD"


def test_the_repr_shows_no_key() -> None:
    assert "s3cret" not in repr(piped(data="s3cret"))
