# SPDX-License-Identifier: Apache-2.0
"""Rules about what was done to targets: what runs, how often, and in which order."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, pairwise

from faults.applications import Platform, Shape
from faults.evidence import FOREVER, Evidence, journal_of
from faults.truth import TruthLine
from faults.violation import Violation
from pipecd.model.deployment import DeploymentStatus
from pipecd.proto.model.chain_pb2 import (
    DEPLOYMENT_CHAIN_PENDING,
    DEPLOYMENT_CHAIN_RUNNING,
    ChainStatus,
)
from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage

# How long a piped that is paused at the end of a stage may take to record that end, in seconds.
RECORDED_WITHIN = 10.0
# How late a client may see a deployment or a status, in seconds.
_SEEN_LATE = 30.0


def overlaps(evidence: Evidence) -> Iterable[Violation]:
    """Scripts and provisioners that began while another one of their application was not over."""
    for line in evidence.truth:
        if line.what == "overlap":
            what = "an apply" if line.deployment == "-" else f"a script of {line.deployment}"
            text = f"{what} began while another one of {line.application} ran"
            yield Violation("one running deployment", text, line.application)


def repeated_stages(evidence: Evidence) -> Iterable[Violation]:
    """Stages that ran after they were finished, or more often than they were interrupted."""
    deployments = {deployment.id: deployment for deployment in evidence.deployments}
    begins: defaultdict[tuple[str, str], list[TruthLine]] = defaultdict(list)
    for line in evidence.truth:
        if line.what == "begin":
            begins[line.deployment, line.label].append(line)
    ends = {(t.deployment, t.label, t.pid): t.at for t in evidence.truth if t.what == "end"}
    for (id_, label), runs in begins.items():
        deployment, first = deployments.get(id_), runs[0]
        if deployment is None:
            text = f"{id_}, which ran for {first.application}, is unknown to the control plane"
            yield Violation("nothing acknowledged is lost", text, first.application)
            continue
        stage = stage_of(deployment, label)
        finished = evidence.completed_stages.get((id_, stage.id)) if stage else None
        for run in runs:
            if finished is not None and run.at > finished:
                text = f"script {label} of {id_} ran again {run.at - finished:.1f} s after it was finished"
                yield Violation("a finished stage never runs again", text, run.application)
        interrupted = evidence.interruptions.get(deployment.piped_id, ())
        yield from _runs_after_their_end(evidence, deployment.piped_id, runs, ends)
        allowed = 1 + sum(first.at - 1 <= at <= runs[-1].at + 1 for at in interrupted)
        if len(runs) > allowed:
            text = f"script {label} of {id_} ran {len(runs)} times with {allowed - 1} interruptions"
            yield Violation("an interrupted stage runs once per restart", text, first.application)


def _runs_after_their_end(
    evidence: Evidence,
    piped: str,
    runs: Sequence[TruthLine],
    ends: Mapping[tuple[str, str, str], float],
) -> Iterable[Violation]:
    """Runs after one that had ended long before the next interruption, so that its end was recorded."""
    interrupted = evidence.interruptions.get(piped, ())
    for run, following in pairwise(runs):
        ended = ends.get((run.deployment, run.label, run.pid))
        if ended is None or any(ended - 1 <= at <= ended + RECORDED_WITHIN for at in interrupted):
            continue
        journal = journal_of(run.deployment)
        if evidence.is_workspace_lost(piped, ended - 1, following.at, files=[journal]):
            continue
        text = f"script {run.label} of {run.deployment} ran again {following.at - ended:.1f} s after its end"
        yield Violation("a finished stage never runs again", text, run.application)


def scripts_after_the_end(evidence: Evidence) -> Iterable[Violation]:
    """Scripts, also those of a rollback, that run although their deployment is completed."""
    for line in evidence.truth:
        completed = evidence.completed_at.get(line.deployment)
        if completed is not None and line.at > completed:
            text = f"{line.what} of script {line.label} of {line.deployment} {line.at - completed:.1f} s after it was completed"
            yield Violation("nothing runs after the end", text, line.application)


def stage_of(deployment: Deployment, label: str) -> PipelineStage | None:
    """The stage of a script: `label` is its index, with `undo-` for that of the rollback."""
    is_rollback, index = label.startswith("undo-"), label.removeprefix("undo-")
    matching = (s for s in deployment.stages if s.rollback == is_rollback and str(s.index) == index)
    return next(matching, None)


def repeated_applies(evidence: Evidence) -> Iterable[Violation]:
    """Revisions that Terraform created again although they were in its state."""
    applies = [line for line in evidence.truth if line.what == "apply"]
    for application in sorted({line.application for line in applies}):
        piped = evidence.piped_of(application)
        kills = [
            *evidence.interruptions.get(piped, ()),
            *(fault.begin for fault in evidence.faults if fault.name == "kill_terraform"),
        ]
        own = (line for line in applies if line.application == application)
        for revision, group in groupby(own, key=lambda line: line.label):
            runs = list(group)
            if (application, revision) in evidence.failing:
                continue
            allowed = 1 + sum(runs[0].at - 1 <= at <= runs[-1].at + 1 for at in kills)
            if len(runs) > allowed:
                text = f"revision {revision} of {application} was created {len(runs)} times with {allowed - 1} interruptions"
                yield Violation("an interrupted stage runs once per restart", text, application)


def program_starts(evidence: Evidence) -> Iterable[Violation]:
    """Programs are started by deployments alone, and one of each application runs in the end."""
    starts: Counter[tuple[str, str, str]] = Counter()
    for line in evidence.truth:
        if line.what == "start" and (line.application, line.commit) not in evidence.failing:
            starts[line.application, line.commit, line.label] += 1
    killed = Counter(fault.piped for fault in evidence.faults if fault.name == "kill_supervisor")
    for (application, commit, variant), count in starts.items():
        kills = killed[evidence.piped_of(application)]
        deployed = sum(
            commit in (each.trigger.commit.hash, each.running_commit_hash)
            for each in evidence.deployments
            if each.application_name == application
        )
        if count > max(deployed, 1) + kills:
            text = f"{variant} of {application} at {commit[:7]} was started {count} times by {deployed} deployments"
            yield Violation("a program starts once per deployment", text, application)
    for application, programs in evidence.running_programs.items():
        last = last_deployment(evidence, application)
        is_success = last is not None and DeploymentStatus(last.status) is DeploymentStatus.SUCCESS
        if is_success and len(programs) != 1:
            text = f"{application} runs {', '.join(programs) or 'nothing'}"
            yield Violation("one program of an application runs", text, application)


def last_deployment(evidence: Evidence, application: str) -> Deployment | None:
    own = (each for each in evidence.deployments if each.application_name == application)
    return max(own, key=lambda each: evidence.first_seen.get(each.id, 0.0), default=None)


def cluster_writes(evidence: Evidence) -> Iterable[Violation]:
    """The objects of an application are only changed while a deployment of it is open."""
    spans: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for each in evidence.deployments:
        begin = evidence.first_seen.get(each.id, 0.0) - _SEEN_LATE
        end = evidence.completed_at.get(each.id, FOREVER)
        spans[each.application_name].append((begin, end))
    names = {a.name for a in evidence.applications if a.platform is Platform.KUBERNETES}
    revisions: defaultdict[str, list[str]] = defaultdict(list)
    for write in evidence.cluster_writes:
        if write.application not in names:
            continue
        if write.revision:
            revisions[write.application].append(write.revision)
        if not any(begin <= write.at <= end for begin, end in spans[write.application]):
            text = (
                f"{write.verb} of {write.kind} of {write.application} while no deployment was open"
            )
            yield Violation("nothing runs after the end", text, write.application)
    for application, written in revisions.items():
        own = [each for each in evidence.deployments if each.application_name == application]
        rollbacks = sum(DeploymentStatus(d.status) is not DeploymentStatus.SUCCESS for d in own)
        switches = len([*groupby(written)])
        if switches > len(own) + rollbacks:
            text = f"{application} switched {switches} times between revisions with {len(own)} deployments"
            yield Violation("one running deployment", text, application)


def chains(evidence: Evidence) -> Iterable[Violation]:
    """A deployment that succeeded and has a chain is followed by one of the next application.

    A chain that cannot go on, since its follower is broken or disabled, ends nevertheless.
    """
    rule = "a chain reaches its followers"
    for chain in evidence.chains:
        if chain.status in (DEPLOYMENT_CHAIN_PENDING, DEPLOYMENT_CHAIN_RUNNING):
            text = f"chain {chain.id} is {ChainStatus.Name(chain.status)}"
            yield Violation("nothing is stuck", text)
    followers = {a.name: a.follower for a in evidence.applications if a.shape is Shape.CHAIN}
    reached = {(d.deployment_chain_id, d.application_name) for d in evidence.deployments}
    for each in evidence.deployments:
        name, chain = each.application_name, each.deployment_chain_id
        if name not in followers or DeploymentStatus(each.status) is not DeploymentStatus.SUCCESS:
            continue
        follower = followers[name]
        if not chain:
            yield Violation(rule, f"{each.id} of {name} succeeded without a chain", name)
        elif (chain, follower) not in reached and _can_follow(evidence, each, follower):
            text = f"{each.id} of {name} succeeded, and chain {chain} did not deploy {follower}"
            yield Violation(rule, text, name)


def _can_follow(evidence: Evidence, first: Deployment, follower: str) -> bool:
    """Whether the file of the follower parses, and no user disabled it meanwhile."""
    if (follower, first.trigger.commit.hash) in evidence.broken_commits:
        return False
    begin = evidence.first_seen.get(first.id, 0.0) - _SEEN_LATE
    end = evidence.completed_at.get(first.id, FOREVER) + _SEEN_LATE
    return not any(
        request.kind == "disable" and request.application == follower and begin <= request.at <= end
        for request in evidence.requests
    )
