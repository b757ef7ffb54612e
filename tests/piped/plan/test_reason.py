# SPDX-License-Identifier: Apache-2.0
"""The trigger rules: what deploys an application and what does not."""

from datetime import UTC, datetime, timedelta

import pytest

from pipecd.config.application import (
    OnChainSpec,
    OnCommandSpec,
    OnCommitSpec,
    OnOutOfSyncSpec,
)
from pipecd.config.units import Duration
from pipecd.model.application import ApplicationKind
from pipecd.model.errors import UserMistake
from pipecd.piped.plan.reason import (
    CommitFacts,
    LastDeployment,
    directory_prefix,
    invalid_kind,
    invalid_patterns,
    needs_changed_files,
    on_chain,
    on_command,
    on_commit,
    on_out_of_sync,
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
            id="a directory with a similar name is another one",
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
            id="ignores are matched before paths",
        ),
        pytest.param(
            OnCommitSpec(paths=("lib/**",)),
            facts("lib/x/y"),
            True,
            "lib/x/y matches 'lib/**' of onCommit.paths",
            id="a path outside of its directory",
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
            id="the root has several spellings",
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
            id="a name that is not UTF-8 is printable",
        ),
    ],
)
def test_commits(spec: OnCommitSpec, given: CommitFacts, deploy: bool, reason: str) -> None:
    decision = on_commit(spec, given)
    assert decision.deploy is deploy
    assert reason in decision.reason


def test_an_invalid_pattern_is_an_error() -> None:
    with pytest.raises(UserMistake, match="syntax error in pattern"):
        on_commit(OnCommitSpec(paths=("[",)), facts("a"))


def test_changed_files_are_only_needed_if_they_decide() -> None:
    assert needs_changed_files(OnCommitSpec(), last="a", head="b")
    assert not needs_changed_files(OnCommitSpec(), last="", head="b")
    assert not needs_changed_files(OnCommitSpec(), last="b", head="b")
    assert not needs_changed_files(OnCommitSpec(disabled=True), last="a", head="b")


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
            OnOutOfSyncSpec(), None, False, "disabled", id="drift does not trigger by default"
        ),
        pytest.param(ENABLED, None, True, "never deployed", id="never deployed"),
        pytest.param(
            ENABLED, LastDeployment(None), False, "being deployed", id="a deployment is running"
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
            id="a clock that was set back by hours does not delay",
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
    assert invalid_kind(ecs, kubernetes, has_provider=True).endswith(
        "got: ECS, expected: KUBERNETES"
    )
    assert invalid_kind(ecs, ecs, has_provider=True) == ""
    assert invalid_kind(ecs, kubernetes, has_provider=False) == ""
    assert invalid_kind(None, kubernetes, has_provider=True) == ""


@pytest.mark.parametrize(
    ("spec", "part"),
    [
        pytest.param(OnCommitSpec(paths=("a/**",), ignores=("*.md",)), "", id="nothing"),
        pytest.param(OnCommitSpec(paths=("a/[",)), "'a/['", id="a bracket in a path"),
        pytest.param(OnCommitSpec(ignores=("!",)), '"!"', id="an exclusion of nothing"),
    ],
)
def test_invalid_patterns(spec: OnCommitSpec, part: str) -> None:
    error = invalid_patterns(spec)
    assert part in error
    assert bool(error) is bool(part)
