# SPDX-License-Identifier: Apache-2.0
"""What targets write is read once and completely, and only what changed an application counts."""

import json
from pathlib import Path
from typing import Any

import pytest

from faults.truth import ClusterWrite, Truth, event_commits, parse_audit

LINE = "begin web d c 7 1.5 0\n"


def test_lines_are_read_once_and_a_line_without_its_end_later(tmp_path: Path) -> None:
    file = tmp_path / "truth"
    truth = Truth.of(file)
    assert truth.read() == []
    file.write_text(f"{LINE}end web d c 7 2.")
    assert [line.what for line in truth.read()] == ["begin"]
    with file.open("a") as more:
        more.write("5 0\ncut off\n\n")
    assert [(line.what, line.at) for line in truth.read()] == [("begin", 1.5), ("end", 2.5)]
    assert len(truth.read()) == 2


def entry(**changes: Any) -> str:
    return json.dumps(
        {
            "verb": "patch",
            "requestURI": "/api/v1/namespaces/default/configmaps/k00?fieldManager=piped",
            "userAgent": "python-httpx2/2.16.0",
            "objectRef": {"resource": "configmaps", "name": "k00"},
            "responseStatus": {"code": 200},
            "requestReceivedTimestamp": "2026-11-18T00:32:35.000000Z",
            "requestObject": {"data": {"revision": "17"}},
            **changes,
        }
    )


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param(entry(), ("k00", "17"), id="an apply of a revision"),
        pytest.param(
            entry(objectRef={"resource": "deployments", "name": "k01-canary"}, requestObject=None),
            ("k01", ""),
            id="a variant belongs to its application",
        ),
        pytest.param(entry(requestURI="/api/v1/x?dryRun=All"), None, id="a dry run changes nothing"),
        pytest.param(entry(responseStatus={"code": 409}), None, id="a conflict changes nothing"),
        pytest.param(entry(userAgent="kube-controller-manager/v1"), None, id="of the cluster itself"),
        pytest.param('{"verb": "pa', None, id="a line that is cut off"),
    ],
)  # fmt: skip
def test_only_changes_of_applications_count(line: str, expected: tuple[str, str] | None) -> None:
    write = parse_audit(line)
    assert (write and (write.application, write.revision)) == expected
    assert write is None or isinstance(write, ClusterWrite)


@pytest.mark.parametrize(
    ("parent", "count"),
    [
        pytest.param("second", 2, id="in one history"),
        pytest.param("first", 1, id="after a force push that removed the first commit"),
        pytest.param("gone", 1, id="after the repository was created again"),
    ],
)
def test_commits_of_an_event_are_counted_by_history(parent: str, count: int) -> None:
    messages = {"first": "a change", "second": "event v1", "third": "event v1"}
    parents = {"first": [], "second": ["first"], "third": [parent]}
    assert event_commits(messages, parents) == {"v1": count}


def test_a_commit_writes_the_values_of_several_events_and_its_revert_none() -> None:
    messages = {"first": "event v1\n\nevent v2\n", "second": 'Revert "event v1"'}
    assert event_commits(messages, {"second": ["first"]}) == {"v1": 1, "v2": 1}
