# SPDX-License-Identifier: Apache-2.0
"""When a stage is passed over."""

import pytest

from pipecd.config.application.pipeline import SkipOn
from pipecd.piped.plan.skip import skip_reason

DOCS = SkipOn(paths=("docs/**", "**/*.md"))
CHORE = SkipOn(commit_message_prefixes=("chore:",))
BOTH = SkipOn(paths=("docs/**",), commit_message_prefixes=("chore:",))


@pytest.mark.parametrize(
    ("skip_on", "message", "changed", "skipped"),
    [
        pytest.param(SkipOn(), "chore: x", ["a"], False, id="nothing configured means never"),
        pytest.param(DOCS, "x", ["docs/a.txt", "web/README.md"], True, id="every changed file matches"),
        pytest.param(DOCS, "x", ["docs/a.txt", "web/main.go"], False, id="one changed file does not match"),
        pytest.param(DOCS, "x", [], True, id="nothing changed"),
        pytest.param(DOCS, "x", None, False, id="there is nothing to compare with on a first deployment"),
        pytest.param(CHORE, "chore: tidy up", None, True, id="the message counts on a first deployment"),
        pytest.param(CHORE, "fix\nchore: tidy up", ["a"], False, id="only the subject counts"),
        pytest.param(BOTH, "chore: x", ["web/main.go"], True, id="either condition suffices"),
    ],
)  # fmt: skip
def test_skip(skip_on: SkipOn, message: str, changed: list[str] | None, skipped: bool) -> None:
    reason = skip_reason(skip_on, commit_message=message, changed_files=changed)
    assert (reason is not None) == skipped
