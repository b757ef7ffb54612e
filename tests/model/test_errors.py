# SPDX-License-Identifier: Apache-2.0
"""The texts of errors."""

from pipecd.model.errors import UserMistake


def test_the_text_of_an_error_has_cause_and_remedy() -> None:
    assert str(UserMistake("the port is in use")) == "the port is in use"
    error = UserMistake("the port is in use", hint="choose another")
    assert str(error) == "the port is in use; choose another"
    assert (error.message, error.hint) == ("the port is in use", "choose another")
