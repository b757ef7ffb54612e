# SPDX-License-Identifier: Apache-2.0
"""What an installation promises in spite of all faults, as pure functions over what was seen of it.

Each rule returns its violations. `docs/reliability.md` lists the rules; `observer` and `ending` have those
that are checked while an installation runs and while it settles.
"""

from collections.abc import Callable, Iterable, Sequence

from faults import execution_rules, report_rules, request_rules
from faults.evidence import Evidence
from faults.violation import Violation

RULES: Sequence[Callable[[Evidence], Iterable[Violation]]] = (
    execution_rules.overlaps,
    execution_rules.repeated_stages,
    execution_rules.scripts_after_the_end,
    execution_rules.repeated_applies,
    execution_rules.program_starts,
    execution_rules.cluster_writes,
    execution_rules.chains,
    report_rules.commands,
    report_rules.approvals,
    report_rules.stage_logs,
    report_rules.events,
    report_rules.notifications,
    request_rules.edits,
    request_rules.running_settings,
    request_rules.previews,
    report_rules.tracebacks,
    report_rules.resources,
)


def check(evidence: Evidence) -> list[Violation]:
    """All violations of the rules that are checked when everything has settled."""
    return [violation for rule in RULES for violation in rule(evidence)]
