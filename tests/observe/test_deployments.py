# SPDX-License-Identifier: Apache-2.0
"""The metric of deployment statuses: running deployments, and completed ones until exported."""

from pipecd.observe.deployments import DeploymentStatuses
from pipecd.proto.model import deployment_pb2 as pb
from pipecd.proto.model.deployment_pb2 import Deployment


def deployment(id: str, status: "pb.DeploymentStatus.ValueType", kind: int = 0) -> Deployment:
    made = Deployment(id=id, application_id="a", application_name="cart", status=status)
    made.kind = kind  # type: ignore[assignment]
    return made


def shown(statuses: DeploymentStatuses) -> dict[str, list[str]]:
    """The statuses with a 1 of each deployment; every other one must have a 0."""
    found: dict[str, list[str]] = {}
    for family in statuses.collect():
        for sample in family.samples:
            assert sample.value in (0, 1)
            ones = found.setdefault(sample.labels["deployment"], [])
            ones += [sample.labels["status"]] * int(sample.value)
    return found


def test_a_changed_status_replaces_the_listed_one() -> None:
    statuses = DeploymentStatuses(lambda: [deployment("a", pb.DEPLOYMENT_PLANNED)])
    assert shown(statuses) == {"a": ["DEPLOYMENT_PLANNED"]}
    statuses.changed(deployment("a", pb.DEPLOYMENT_RUNNING))
    assert shown(statuses) == {"a": ["DEPLOYMENT_RUNNING"]}


def test_a_running_deployment_is_exported_after_every_report() -> None:
    statuses = DeploymentStatuses()
    statuses.changed(deployment("a", pb.DEPLOYMENT_RUNNING))
    for _ in range(3):
        assert shown(statuses) == {"a": ["DEPLOYMENT_RUNNING"]}
        statuses.reported()


def test_a_completed_deployment_is_exported_exactly_once() -> None:
    statuses = DeploymentStatuses()
    statuses.changed(deployment("a", pb.DEPLOYMENT_FAILURE))
    shown(statuses)
    statuses.changed(deployment("b", pb.DEPLOYMENT_SUCCESS))
    statuses.reported()
    assert shown(statuses) == {"b": ["DEPLOYMENT_SUCCESS"]}
    statuses.reported()
    assert shown(statuses) == {}


def test_a_piped_without_metrics_keeps_no_completed_deployment() -> None:
    statuses = DeploymentStatuses(is_reported=False)
    statuses.changed(deployment("a", pb.DEPLOYMENT_SUCCESS))
    statuses.reported()
    assert shown(statuses) == {}


def test_a_kind_of_tomorrow_is_shown_by_its_number() -> None:
    statuses = DeploymentStatuses(lambda: [deployment("a", pb.DEPLOYMENT_PENDING, kind=99)])
    (family,) = statuses.collect()
    assert family.samples[0].labels["application_kind"] == "99"


def test_more_deployments_than_a_report_has_room_for_come_with_the_next_ones() -> None:
    running = [deployment(f"running-{number}", pb.DEPLOYMENT_RUNNING) for number in range(600)]
    statuses = DeploymentStatuses(lambda: running)
    for number in range(1500):
        statuses.changed(deployment(f"done-{number}", pb.DEPLOYMENT_SUCCESS))
    reports: list[set[str]] = []
    for _ in range(3):
        reports.append(set(shown(statuses)))
        statuses.reported()
    assert [len(report) for report in reports] == [1000, 1000, 600]
    completed = [id for report in reports for id in report if id.startswith("done")]
    assert len(completed) == len(set(completed)) == 1500
    assert reports[2] == {each.id for each in running}
