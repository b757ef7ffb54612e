# SPDX-License-Identifier: Apache-2.0
"""The command that registers an event again."""

import pytest

from pipecd.controlplane.console.events_view import register_command
from pipecd.proto.model import event_pb2 as pb
from pipecd.proto.model.event_pb2 import Event

URL = "http://pipecd.example:8080"
REGISTER = "pipectl event register --address=pipecd.example:8080 --insecure --api-key-file=api-key"


@pytest.mark.parametrize(
    ("event", "command"),
    [
        pytest.param(
            Event(name="pushed", data="v1", status=pb.EVENT_NOT_HANDLED),
            f"{REGISTER} --name=pushed --data=v1",
            id="a plain one",
        ),
        pytest.param(
            Event(
                name="image pushed",
                data="$(id)",
                labels={"env": "dev", "app": "cart"},
                contexts={"Run": "12"},
                trigger_commit_hash="c0ffee",
                status=pb.EVENT_FAILURE,
            ),
            f"{REGISTER} --name='image pushed' --data='$(id)' --labels=app=cart,env=dev "
            "--contexts=Run=12 --commit-hash=c0ffee",
            id="all of one, quoted for a shell",
        ),
        pytest.param(
            Event(name="a", data="b", labels={"to": "a,b", "app": "c"}, status=pb.EVENT_FAILURE),
            f"{REGISTER} --name=a --data=b --labels='app=c,\"to=a,b\"'",
            id="a label with a comma",
        ),
        pytest.param(Event(name="a", data="b", status=pb.EVENT_SUCCESS), "", id="none for success"),
        pytest.param(Event(name="a", data="b", status=pb.EVENT_OUTDATED), "", id="none for old"),
    ],
)
def test_an_event_that_did_not_work_can_be_registered_again(event: Event, command: str) -> None:
    assert " ".join(register_command(event, URL).replace("\\\n", "").split()) == command


def test_a_command_that_would_look_like_another_one_is_not_offered() -> None:
    event = Event(name="pushed\u202eimage", data="v1", status=pb.EVENT_FAILURE)
    assert register_command(event, URL) == ""
