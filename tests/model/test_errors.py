# SPDX-License-Identifier: Apache-2.0
"""What errors say."""

from pipecd.model.errors import UserMistake


def test_an_error_says_what_is_wrong_and_what_to_do() -> None:
    assert str(UserMistake("the port is in use")) == "the port is in use"
    error = UserMistake("the port is in use", hint="choose another")
    assert str(error) == "the port is in use; choose another"
    assert (error.message, error.hint) == ("the port is in use", "choose another")
