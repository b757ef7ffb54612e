# SPDX-License-Identifier: Apache-2.0
"""What is a reason to deploy and what is not."""

from datetime import UTC, datetime, timedelta

import pytest

from pipecd.config.application.trigger import (
    OnChainSpec,
    OnCommandSpec,
    OnCommitSpec,
    OnOutOfSyncSpec,
)
from pipecd.config.duration import Duration
from pipecd.model.application import ApplicationKind
from pipecd.model.errors import UserMistake
from pipecd.piped.plan.reason import (
    CommitFacts,
    LastDeployment,
    directory_prefix,
    kind_mistake,
    needs_changes,
    on_chain,
    on_command,
    on_commit,
    on_out_of_sync,
    pattern_mistake,
)

NOW = datetime(2024, 1, 1, 12, tzinfo=UTC)


def facts(
    *changed: str, path: str = "apps/web", last: str = "aaa", head: str = "bbb"
) -> CommitFacts:
    return CommitFacts(path, last, head, changed)


@pytest.mark.parametrize(
    ("spec", "given", "deploy", "reason"),
    [
        pytest.param(
            OnCommitSpec(),
            facts("apps/web/a"),
            True,
            "apps/web/a changed",
            id="a file of the application changed",
        ),
        pytest.param(
            OnCommitSpec(),
            facts("apps/web2/a"),
            False,
            "no file",
            id="a neighbour with a similar name is another",
        ),
        pytest.param(
            OnCommitSpec(),
            facts("apps/web"),
            False,
            "no file",
            id="a file in place of the directory is not below it",
        ),
        pytest.param(
            OnCommitSpec(), facts(), False, "no file", id="an empty commit touches nothing"
        ),
        pytest.param(
            OnCommitSpec(disabled=True),
            facts("apps/web/a"),
            False,
            "disabled",
            id="disabled is disabled",
        ),
        pytest.param(
            OnCommitSpec(disabled=True), facts(last=""), False, "disabled", id="even the first time"
        ),
        pytest.param(
            OnCommitSpec(),
            facts(last=""),
            True,
            "never deployed",
            id="the first time needs no change",
        ),
        pytest.param(
            OnCommitSpec(),
            facts(head="aaa"),
            False,
            "nothing was committed",
            id="the same head again",
        ),
        pytest.param(
            OnCommitSpec(),
            CommitFacts("apps/web", "aaa", "bbb", None),
            True,
            "is gone",
            id="after a force push everything may have changed",
        ),
        pytest.param(
            OnCommitSpec(ignores=("**/*.md",)),
            facts("apps/web/a", "x/b.md"),
            False,
            "x/b.md matches '**/*.md' of onCommit.ignores",
            id="one ignored file vetoes the rest",
        ),
        pytest.param(
            OnCommitSpec(paths=("lib",), ignores=("lib/*.md",)),
            facts("lib/a.md"),
            False,
            "ignores",
            id="ignores are asked before paths",
        ),
        pytest.param(
            OnCommitSpec(paths=("lib/**",)),
            facts("lib/x/y"),
            True,
            "lib/x/y matches 'lib/**' of onCommit.paths",
            id="another directory that counts",
        ),
        pytest.param(
            OnCommitSpec(paths=("lib",)),
            facts("apps/web/a"),
            True,
            "apps/web/a changed",
            id="paths add to the own directory",
        ),
        pytest.param(
            OnCommitSpec(paths=("lib", "!lib/x")),
            facts("lib/x"),
            True,
            "lib/x matches",
            id="each pattern stands alone",
        ),
        pytest.param(
            OnCommitSpec(),
            facts("anything", path="."),
            True,
            "anything changed",
            id="an application at the root owns everything",
        ),
        pytest.param(
            OnCommitSpec(),
            facts("anything", path="./"),
            True,
            "anything changed",
            id="however the root is spelled",
        ),
        pytest.param(
            OnCommitSpec(),
            facts("apps/web/a", path="./apps//web/"),
            True,
            "changed",
            id="the path is cleaned",
        ),
        pytest.param(
            OnCommitSpec(),
            facts("apps/web/\udce9"),
            True,
            "apps/web/� changed",
            id="a name that is no text can be told",
        ),
    ],
)
def test_commits(spec: OnCommitSpec, given: CommitFacts, deploy: bool, reason: str) -> None:
    decision = on_commit(spec, given)
    assert decision.deploy is deploy
    assert reason in decision.reason


def test_a_bad_pattern_is_told() -> None:
    with pytest.raises(UserMistake, match="syntax error in pattern"):
        on_commit(OnCommitSpec(paths=("[",)), facts("a"))


def test_the_difference_is_only_asked_for_when_it_decides() -> None:
    assert needs_changes(OnCommitSpec(), last="a", head="b")
    assert not needs_changes(OnCommitSpec(), last="", head="b")
    assert not needs_changes(OnCommitSpec(), last="b", head="b")
    assert not needs_changes(OnCommitSpec(disabled=True), last="a", head="b")


def test_commands_and_chains() -> None:
    assert on_command(OnCommandSpec()).deploy
    assert not on_command(OnCommandSpec(disabled=True)).deploy
    assert on_chain(OnChainSpec(disabled=False)).deploy
    assert not on_chain(OnChainSpec()).deploy
    assert "trigger.onChain.disabled" in on_chain(OnChainSpec()).reason


ENABLED = OnOutOfSyncSpec(disabled=False, min_window=Duration(300))


@pytest.mark.parametrize(
    ("spec", "last", "deploy", "reason"),
    [
        pytest.param(
            OnOutOfSyncSpec(), None, False, "disabled", id="drift alone is no reason by default"
        ),
        pytest.param(ENABLED, None, True, "never deployed", id="never deployed"),
        pytest.param(
            ENABLED, LastDeployment(None), False, "being deployed", id="a deployment is on its way"
        ),
        pytest.param(
            ENABLED,
            LastDeployment(NOW - timedelta(seconds=299)),
            False,
            "1s are left",
            id="too soon",
        ),
        pytest.param(
            ENABLED,
            LastDeployment(NOW - timedelta(seconds=300)),
            True,
            "out of sync",
            id="long enough ago",
        ),
        pytest.param(
            ENABLED,
            LastDeployment(NOW + timedelta(seconds=299)),
            False,
            "9m59s are left",
            id="a clock that was set back a little",
        ),
        pytest.param(
            ENABLED,
            LastDeployment(NOW + timedelta(hours=9)),
            True,
            "out of sync",
            id="a clock that was set back by hours, for which nobody has to wait",
        ),
    ],
)
def test_drift(
    spec: OnOutOfSyncSpec, last: LastDeployment | None, deploy: bool, reason: str
) -> None:
    decision = on_out_of_sync(spec, last, now=NOW)
    assert decision.deploy is deploy
    assert reason in decision.reason


@pytest.mark.parametrize(
    ("path", "prefix"),
    [("a", "a/"), ("a/b/", "a/b/"), ("", ""), (".", ""), ("./", ""), ("./a", "a/")],
)
def test_prefix(path: str, prefix: str) -> None:
    assert directory_prefix(path) == prefix


def test_a_kind_may_not_change_under_a_provider() -> None:
    ecs, kubernetes = ApplicationKind.ECS, ApplicationKind.KUBERNETES
    assert kind_mistake(ecs, kubernetes, has_provider=True).endswith(
        "got: ECS, expected: KUBERNETES"
    )
    assert kind_mistake(ecs, ecs, has_provider=True) == ""
    assert kind_mistake(ecs, kubernetes, has_provider=False) == ""
    assert kind_mistake(None, kubernetes, has_provider=True) == ""


@pytest.mark.parametrize(
    ("spec", "mistake"),
    [
        pytest.param(OnCommitSpec(paths=("a/**",), ignores=("*.md",)), "", id="nothing"),
        pytest.param(OnCommitSpec(paths=("a/[",)), "'a/['", id="a bracket in a path"),
        pytest.param(OnCommitSpec(ignores=("!",)), '"!"', id="an exclusion of nothing"),
    ],
)
def test_what_is_wrong_with_patterns(spec: OnCommitSpec, mistake: str) -> None:
    found = pattern_mistake(spec)
    assert mistake in found
    assert bool(found) is bool(mistake)
