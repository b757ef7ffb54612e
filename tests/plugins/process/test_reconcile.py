# SPDX-License-Identifier: Apache-2.0
"""What the supervisor decides; a simulated machine carries out every decision."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipecd.plugins.process.desired import (
    CANARY,
    PRIMARY,
    DesiredApplication,
    DesiredVariant,
    HealthProbe,
    Program,
)
from pipecd.plugins.process.instance import Instance, Phase
from pipecd.plugins.process.reconcile import (
    LONGEST_BACKOFF,
    STABLE_SECONDS,
    Decision,
    Drain,
    Forget,
    Kill,
    Launch,
    Terminate,
    backoff,
    crashes_after,
    previous_versions,
    reconcile,
)


def variant(digest: str, replicas: int = 1) -> DesiredVariant:
    program = Program(release=f"/r/{digest}", commit=digest, digest=digest, command="serve")
    return DesiredVariant(program, replicas, HealthProbe(timeout=30), grace_period=10)


def application(
    primary: DesiredVariant | None, canary: DesiredVariant | None = None, canary_share: int = 0
) -> DesiredApplication:
    variants = {PRIMARY: primary, CANARY: canary}
    return DesiredApplication(
        id="1",
        name="shop",
        variants={name: each for name, each in variants.items() if each},
        weights={PRIMARY: 100 - canary_share, CANARY: canary_share},
    )


def instance(
    digest: str, phase: Phase, *, index: int = 0, since: float = 0.0, name: str = PRIMARY
) -> Instance:
    return Instance(name, variant(digest).program.identity, index, phase, since)


@dataclass
class Machine:
    """Programs of good versions become healthy when they are asked, those of bad ones exit."""

    desired: DesiredApplication
    bad: frozenset[str] = frozenset()
    now: float = 0.0
    instances: dict[str, Instance] = field(default_factory=dict[str, Instance])
    decision: Decision = field(default_factory=Decision)
    serving: dict[str, str] = field(default_factory=dict[str, str])
    previous: Mapping[str, DesiredVariant] = field(default_factory=dict[str, DesiredVariant])

    def apply(self, desired: DesiredApplication) -> None:
        self.previous = previous_versions(self.desired, desired, self.previous, self.serving)
        self.desired = desired

    def decide(self) -> Decision:
        decision = reconcile(
            self.desired,
            tuple(self.instances.values()),
            self.now,
            drained=frozenset(self.instances),
            serving=self.serving,
            previous=self.previous,
        )
        self.previous = decision.previous
        self.serving |= {name: route.identity for name, route in decision.routes.items()}
        self.decision = decision
        for action in decision.actions:
            match action:
                case Launch(name, version, index, restarts, crashes):
                    program = version.program
                    new = Instance(
                        name,
                        program.identity,
                        index,
                        Phase.STARTING,
                        self.now,
                        commit=program.digest,
                        started_at=self.now,
                        restarts=restarts,
                        crashes=crashes,
                    )
                    self.instances[new.id] = new
                case Drain(id):
                    self.enter(id, Phase.DRAINING)
                case Terminate(id, _):
                    self.enter(id, Phase.STOPPING)
                case Kill(id):
                    self.enter(id, Phase.EXITED)
                case Forget(id):
                    del self.instances[id]
        return decision

    def enter(self, id: str, phase: Phase) -> None:
        before = self.instances[id]
        crashes = crashes_after(before, self.now) if phase is Phase.EXITED else before.crashes
        self.instances[id] = replace(before, phase=phase, since=self.now, crashes=crashes)

    def advance(self, seconds: float) -> None:
        """Lets programs start and end."""
        self.now += seconds
        for each in list(self.instances.values()):
            if each.phase is Phase.STARTING:
                self.enter(each.id, Phase.EXITED if each.commit in self.bad else Phase.HEALTHY)
            elif each.phase is Phase.STOPPING:
                self.enter(each.id, Phase.EXITED)

    def settle(self) -> None:
        for _ in range(40):
            self.decide()
            self.advance(1)

    def routed(self, name: str = PRIMARY) -> list[Instance]:
        route = self.decision.routes.get(name)
        return (
            [self.instances[id] for id in route.instances if id in self.instances] if route else []
        )


versions = st.sampled_from(["a", "b", "c", "bad"])
variants = st.builds(variant, versions, st.integers(1, 3))
changes = st.lists(
    st.tuples(
        st.builds(application, variants, st.none() | variants, st.integers(0, 100)),
        st.integers(0, 4),
        st.sampled_from([0.1, 0.5, 5.0]),
    ),
    min_size=1,
    max_size=6,
)
BAD = frozenset({"bad"})


@settings(deadline=None, max_examples=50)
@given(changes)
def test_the_last_desired_state_is_reached(
    steps: list[tuple[DesiredApplication, int, float]],
) -> None:
    machine = Machine(steps[0][0], BAD)
    for desired, decisions, seconds in steps:
        machine.apply(desired)
        for _ in range(decisions):
            machine.decide()
            machine.advance(seconds)
    last = steps[-1][0].with_variant(PRIMARY, variant("z", 2)).with_variant(CANARY, None)
    machine.apply(last)
    machine.settle()
    assert machine.decide().actions == ()
    assert sorted((i.index, i.commit, i.phase) for i in machine.instances.values()) == [
        (0, "z", Phase.HEALTHY),
        (1, "z", Phase.HEALTHY),
    ]


@settings(deadline=None, max_examples=50)
@given(changes)
def test_somebody_serves_at_every_step(
    steps: list[tuple[DesiredApplication, int, float]],
) -> None:
    """Whatever is rolled out meanwhile, a primary that once served goes on."""
    machine = Machine(application(variant("first", 2)), BAD)
    machine.settle()
    for desired, decisions, seconds in steps:
        # Some share must go to the primary, which has at least one good version.
        machine.apply(replace(desired, weights={PRIMARY: 50, CANARY: 50}))
        for _ in range(decisions):
            machine.decide()
            served = machine.routed()
            assert served
            assert {i.phase for i in served} == {Phase.HEALTHY}
            machine.advance(seconds)


@settings(deadline=None, max_examples=50)
@given(changes)
def test_requests_go_to_one_version_of_a_variant_and_to_no_instance_that_leaves(
    steps: list[tuple[DesiredApplication, int, float]],
) -> None:
    machine = Machine(steps[0][0], BAD)
    for desired, decisions, seconds in steps:
        machine.apply(desired)
        for _ in range(decisions):
            before = dict(machine.instances)
            decision = machine.decide()
            for name, route in decision.routes.items():
                routed = [before[id] for id in route.instances]
                assert {i.identity for i in routed} == {route.identity}
                assert {i.variant for i in routed} == {name}
                assert not any(i.is_leaving or not i.is_alive for i in routed)
                drained = {a.id for a in decision.actions if isinstance(a, Drain | Terminate)}
                assert not drained & set(route.instances)
            machine.advance(seconds)


@settings(deadline=None, max_examples=50)
@given(changes)
def test_no_instance_gets_two_actions_and_none_is_launched_twice(
    steps: list[tuple[DesiredApplication, int, float]],
) -> None:
    machine = Machine(steps[0][0], BAD)
    for desired, decisions, seconds in steps:
        machine.apply(desired)
        for _ in range(decisions):
            alive = {i.id for i in machine.instances.values() if i.is_alive}
            actions = machine.decide().actions
            ids = [a.id for a in actions if not isinstance(a, Launch)]
            launched = [
                f"{a.variant}-{a.version.program.identity}-{a.index}"
                for a in actions
                if isinstance(a, Launch)
            ]
            assert len(ids) == len(set(ids))
            assert len(launched) == len(set(launched))
            assert not alive & set(launched)
            machine.advance(seconds)


def test_an_old_version_serves_until_the_new_one_is_complete() -> None:
    machine = Machine(application(variant("a", 2)))
    machine.settle()
    machine.apply(application(variant("b", 2)))
    machine.decide()
    assert {i.commit for i in machine.routed()} == {"a"}
    first = next(i for i in machine.instances.values() if i.commit == "b")
    machine.enter(first.id, Phase.HEALTHY)
    machine.decide()
    assert {i.commit for i in machine.routed()} == {"a"}
    machine.advance(1)
    machine.decide()
    assert {i.commit for i in machine.routed()} == {"b"}


def test_going_back_from_a_version_that_never_was_healthy_restarts_nothing() -> None:
    machine = Machine(application(variant("a", 2)), BAD)
    machine.settle()
    before = dict(machine.instances)
    machine.apply(application(variant("bad", 2)))
    machine.settle()
    machine.apply(application(variant("a", 2)))
    machine.settle()
    assert machine.instances == before


def test_a_canary_that_cannot_serve_gets_no_requests() -> None:
    machine = Machine(application(variant("a"), variant("bad"), 50), BAD)
    machine.settle()
    assert set(machine.decision.routes) == {PRIMARY}
    assert machine.decision.routes[PRIMARY].weight == 50


def test_a_share_of_zero_is_not_routed() -> None:
    machine = Machine(application(variant("a"), variant("b"), 0))
    machine.settle()
    assert set(machine.decision.routes) == {PRIMARY}
    assert len(machine.instances) == 2


@pytest.mark.parametrize(
    ("phase", "seconds", "expected"),
    [
        pytest.param(Phase.STARTING, 29, [], id="still starting"),
        pytest.param(Phase.STARTING, 31, [Terminate], id="never healthy"),
        pytest.param(Phase.UNHEALTHY, 31, [Terminate], id="unhealthy for too long"),
        pytest.param(Phase.HEALTHY, 1000, [], id="healthy"),
        pytest.param(Phase.STOPPING, 9, [], id="in its grace period"),
        pytest.param(Phase.STOPPING, 11, [Kill], id="after its grace period"),
        pytest.param(Phase.EXITED, 0.4, [], id="too early to restart"),
        pytest.param(Phase.EXITED, 0.6, [Launch], id="to be restarted"),
    ],
)
def test_the_next_action_for_an_instance(
    phase: Phase, seconds: float, expected: Sequence[type]
) -> None:
    decision = reconcile(application(variant("a")), [instance("a", phase)], seconds)
    assert [type(action) for action in decision.actions] == expected


def test_an_instance_is_drained_until_its_requests_have_ended() -> None:
    draining = instance("a", Phase.DRAINING)
    desired = application(variant("b"))
    waiting = reconcile(desired, [draining, instance("b", Phase.HEALTHY)], 1)
    assert waiting.actions == ()
    assert waiting.again_at == 10
    ended = reconcile(
        desired, [draining, instance("b", Phase.HEALTHY)], 1, drained=frozenset({draining.id})
    )
    assert ended.actions == (Terminate(draining.id),)


def test_a_restart_waits_longer_each_time() -> None:
    waits = [backoff(n) for n in range(1, 100)]
    assert waits == sorted(waits)
    assert (waits[0], waits[1], waits[-1]) == (0.5, 1.0, LONGEST_BACKOFF)


def test_an_exit_after_a_stable_time_starts_the_count_again() -> None:
    running = replace(instance("a", Phase.HEALTHY), started_at=0.0, crashes=7)
    assert crashes_after(running, STABLE_SECONDS - 1) == 8
    assert crashes_after(running, STABLE_SECONDS) == 1


def test_restarts_are_counted_for_people() -> None:
    ended = replace(instance("a", Phase.EXITED), restarts=7, crashes=1)
    decision = reconcile(application(variant("a")), [ended], 0.5)
    assert decision.actions == (Launch(PRIMARY, variant("a"), 0, restarts=8, crashes=1),)


def rolling_out_a_bad_version() -> Machine:
    machine = Machine(application(variant("a")), BAD)
    machine.settle()
    machine.apply(application(variant("bad")))
    machine.decide()
    return machine


def test_an_old_version_is_restarted_while_the_new_one_is_rolled_out() -> None:
    machine = rolling_out_a_bad_version()
    [old] = machine.routed()
    machine.enter(old.id, Phase.EXITED)
    machine.decide()
    assert machine.routed() == []
    machine.advance(0.5)
    machine.decide()
    machine.advance(0.1)
    machine.decide()
    assert [(i.id, i.restarts) for i in machine.routed()] == [(old.id, 1)]


def test_an_old_version_that_fails_its_probes_is_restarted_after_its_timeout() -> None:
    machine = rolling_out_a_bad_version()
    [old] = machine.routed()
    machine.enter(old.id, Phase.UNHEALTHY)
    machine.now += 29
    assert Terminate(old.id, is_unhealthy=True) not in machine.decide().actions
    assert machine.routed() == [machine.instances[old.id]]
    machine.now += 1
    assert Terminate(old.id, is_unhealthy=True) in machine.decide().actions


def test_an_old_version_is_not_started_again_once_the_new_one_was_complete() -> None:
    machine = Machine(application(variant("a")))
    machine.settle()
    machine.apply(application(variant("b")))
    machine.settle()
    assert machine.previous == {}
    [new] = machine.routed()
    machine.enter(new.id, Phase.EXITED)
    machine.settle()
    assert {i.commit for i in machine.instances.values()} == {"b"}


def test_the_version_that_served_last_stays_when_rollouts_follow_each_other() -> None:
    machine = rolling_out_a_bad_version()
    machine.apply(
        application(replace(variant("bad"), program=replace(variant("bad").program, args=("2",))))
    )
    machine.decide()
    assert machine.previous == {PRIMARY: variant("a")}
    machine.apply(application(variant("a")))
    assert machine.previous == {}


def test_an_instance_that_fails_its_probes_serves_when_it_is_the_only_one() -> None:
    sick = instance("a", Phase.UNHEALTHY)
    decision = reconcile(application(variant("a", 2)), [sick], 1)
    assert decision.routes[PRIMARY].instances == (sick.id,)
    well = instance("a", Phase.HEALTHY, index=1)
    decision = reconcile(application(variant("a", 2)), [sick, well], 1)
    assert decision.routes[PRIMARY].instances == (well.id,)


def test_a_canary_that_fails_its_probes_gets_no_requests_while_primary_can_serve() -> None:
    desired = application(variant("a"), variant("b"), canary_share=50)
    sick = instance("b", Phase.UNHEALTHY, name=CANARY)
    decision = reconcile(desired, [instance("a", Phase.HEALTHY), sick], 1)
    assert set(decision.routes) == {PRIMARY}
    decision = reconcile(desired, [instance("a", Phase.UNHEALTHY), sick], 1)
    assert set(decision.routes) == {PRIMARY, CANARY}
