# SPDX-License-Identifier: Apache-2.0
"""What all pages of the console have in common."""

from collections.abc import Sequence

import pytest

from pipecd.controlplane.console.page_context import denied_text


@pytest.mark.parametrize(
    ("roles", "text"),
    [
        pytest.param((), "You have no role that allows this; ask", id="no role"),
        pytest.param(("Viewer",), "Your role (Viewer) does not allow this; ask", id="one role"),
        pytest.param(("A", "B"), "Your roles (A, B) do not allow this; ask", id="several roles"),
    ],
)
def test_a_missing_right_names_the_roles(roles: Sequence[str], text: str) -> None:
    assert denied_text(roles) == f"{text} an administrator of the project."
