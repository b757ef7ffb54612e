# SPDX-License-Identifier: Apache-2.0
"""Each push is deployed once, whatever is killed, lost or late.

The state machine runs the pure parts of piped against a control plane of a few dictionaries. Which
commits must be deployed is computed independently, from the pushes and the passes of the trigger.
"""

import asyncio
import shutil
import tempfile
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from pipecd.config.application import ApplicationSpec, OnCommitSpec
from pipecd.git.commit import Commit
from pipecd.git.mirror import Repository
from pipecd.piped.plan.reason import CommitFacts, on_commit
from pipecd.piped.planning.baseline import Baselines, IgnoredCommits
from pipecd.piped.planning.deployment import (
    Cause,
    commit_cause,
    deployment_reference,
    new_deployment,
)
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import Deployment

RULE = OnCommitSpec(ignores=("cart/README",))
FILES = {"own": "cart/app.yaml", "ignored": "cart/README", "other": "shop/app.yaml"}
SITE = Repository("site", "git@github.com:shop/site.git", "main")
BEGINNING = datetime(2026, 1, 2, tzinfo=UTC)


class Killed(Exception):
    """Piped ends at this instruction."""


@dataclass
class StoredState:
    """The state that a control plane stores."""

    application: Application = field(default_factory=lambda: Application(id="cart", name="cart"))
    deployments: dict[str, Deployment] = field(default_factory=dict[str, Deployment])
    completed: set[str] = field(default_factory=set[str])
    commands: list[str] = field(default_factory=list[str])

    def copy(self) -> Application:
        copy = Application()
        copy.CopyFrom(self.application)
        return copy

    def report(self, deployment: Deployment) -> None:
        self.application.most_recently_triggered_deployment.CopyFrom(
            deployment_reference(deployment)
        )

    def open_deployments(self) -> list[Deployment]:
        return [d for id_, d in self.deployments.items() if id_ not in self.completed]


class TriggerHistory(RuleBasedStateMachine):
    """Pushes, passes of the trigger, restarts and kills in any order."""

    @initialize()
    def begin(self) -> None:
        self.directory = Path(tempfile.mkdtemp())
        self.loop = asyncio.new_event_loop()
        self.plane = StoredState()
        self.pushed: list[str] = []
        self.now = BEGINNING
        self.kill_at = 0
        # The last push that a decision was stored for, which survives a restart.
        self.decided = -1
        self.command_count = 0
        self.was_set_back = False
        self.start()
        self.push("own")

    def teardown(self) -> None:
        if hasattr(self, "directory"):
            shutil.rmtree(self.directory)
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()

    # Events outside of piped

    @rule(what=st.sampled_from(sorted(FILES)))
    def push(self, what: str) -> None:
        self.pushed.append(what)
        self.now += timedelta(seconds=3)

    @rule()
    def request_a_sync(self) -> None:
        self.command_count += 1
        self.plane.commands.append(f"command-{self.command_count}")

    @rule()
    def finish_a_deployment(self) -> None:
        self.plane.completed.update(d.id for d in self.plane.open_deployments()[:1])

    @rule(hours=st.sampled_from([-24, -1, 1]))
    def set_the_clock(self, hours: int) -> None:
        self.now += timedelta(hours=hours)
        self.was_set_back = self.was_set_back or hours < 0

    # Actions of piped

    @rule()
    def refresh(self) -> None:
        self.application = self.plane.copy()

    @rule()
    def run_pass(self) -> None:
        self.do_pass()

    @rule(instruction=st.integers(1, 6))
    def be_killed_during_a_pass(self, instruction: int) -> None:
        self.kill_at = instruction
        try:
            self.do_pass()
        except Killed:
            self.start()
        self.kill_at = 0

    @rule()
    def restart(self) -> None:
        self.start()

    @precondition(lambda self: self.plane.commands)
    @rule()
    def lose_the_response_to_a_command(self) -> None:
        command = self.plane.commands[0]
        self.do_pass()
        # The report that the command was handled did not reach the control plane.
        self.plane.commands.insert(0, command)

    # The parts of piped

    def start(self) -> None:
        """A new process, whose state is on disk and in the control plane."""
        self.application = self.plane.copy()
        self.seen = IgnoredCommits(self.directory / "seen.json")
        self.loop.run_until_complete(self.seen.load())
        self.baselines = Baselines(self.seen)
        for deployment in self.plane.open_deployments():
            if self.baselines.adopt(self.application, deployment):
                self.plane.report(deployment)

    def do_pass(self) -> None:
        head = len(self.pushed) - 1
        while self.plane.commands:
            command = self.plane.commands[0]
            self.create(Cause(key=f"command\0{command}", commander="ann"), head)
            self.step()
            self.plane.commands.pop(0)
        self.trigger_on_commit(head)
        self.step()
        self.loop.run_until_complete(self.seen.save({"cart"}))
        self.check_no_push_is_lost(head)

    def trigger_on_commit(self, head: int) -> None:
        baseline = self.baselines.of(self.application)
        if baseline.commit == name(head):
            return
        since = int(baseline.commit[1:]) if baseline.commit else -1
        changed = tuple(FILES[what] for what in self.pushed[since + 1 :])
        facts = CommitFacts("cart", baseline.commit, name(head), changed)
        if on_commit(RULE, facts).deploy:
            self.create(commit_cause(baseline.deployment_id, name(head), "it changed"), head)
        else:
            self.baselines.ignore(self.application, name(head))

    def create(self, cause: Cause, head: int) -> None:
        """As `DeploymentCreator` does, with a step wherever a kill leaves another state behind."""
        deployment = new_deployment(
            self.application,
            ApplicationSpec(name="cart"),
            cause,
            commit=commit(head),
            repository=SITE,
            now=self.now,
        )
        self.step()
        if (before := self.plane.deployments.get(deployment.id)) is not None:
            if self.baselines.adopt(self.application, before, after=cause.after):
                self.plane.report(before)
            return
        self.plane.deployments[deployment.id] = deployment
        self.check_deployed_once(deployment)
        self.step()
        self.baselines.record(self.application, deployment)
        self.plane.report(deployment)
        self.step()

    def step(self) -> None:
        self.kill_at -= 1
        if self.kill_at == 0:
            raise Killed

    # Invariants

    def check_no_push_is_lost(self, head: int) -> None:
        """A pass is done: pushes since the last one are deployed, unless they are ignored."""
        new = self.pushed[self.decided + 1 : head + 1]
        first = self.decided + 1
        newest = max((index(d) for d in self.plane.deployments.values()), default=-1)
        if "own" in new and "ignored" not in new:
            last_own = first + len(new) - 1 - new[::-1].index("own")
            assert newest >= last_own, f"push {last_own} was lost"
        assert newest >= 0, "the first deployment was lost"
        self.decided = head

    def check_deployed_once(self, deployment: Deployment) -> None:
        if deployment.trigger.commander:
            return
        others = [
            d
            for d in self.plane.deployments.values()
            if d.id != deployment.id
            and d.trigger.commit.hash == deployment.trigger.commit.hash
            # If the clock was set back, the order of a command and a commit is unknown.
            and not (self.was_set_back and d.trigger.commander)
        ]
        assert not others, f"commit {deployment.trigger.commit.hash} was deployed twice"


def name(number: int) -> str:
    return f"c{number:039d}"


def index(deployment: Deployment) -> int:
    return int(deployment.trigger.commit.hash[1:])


def commit(number: int) -> Commit:
    written = BEGINNING + timedelta(seconds=number)
    return Commit(name(number), "Ann", "a change", "", written, MappingProxyType({}))


def test_no_trigger_is_lost_or_repeated() -> None:
    profile = settings(max_examples=150, stateful_step_count=30, deadline=None)
    run_state_machine_as_test(TriggerHistory, settings=profile)
