# SPDX-License-Identifier: Apache-2.0
"""Whether a stage is passed over, as its `skipOn` says."""

from collections.abc import Sequence

from pipecd.config.application.pipeline import SkipOn
from pipecd.piped.plan.paths import path_patterns


def skip_reason(
    skip_on: SkipOn, *, commit_message: str, changed_files: Sequence[str] | None
) -> str | None:
    """Why the stage is skipped, or None; `changed_files` is None on a first deployment.

    Upstream crashes when there is no commit to compare with; then no path matches.
    """
    if skip_on.paths and changed_files is not None:
        if not changed_files:
            return "no file was changed since the running commit"
        if path_patterns(skip_on.paths).match_all(changed_files):
            return "all changed files match skipOn.paths"
    subject = commit_message.split("\n", 1)[0]
    for prefix in skip_on.commit_message_prefixes:
        if subject.startswith(prefix):
            return f'the commit message starts with "{prefix}"'
    return None
