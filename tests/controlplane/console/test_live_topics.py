# SPDX-License-Identifier: Apache-2.0
"""What a page can follow, and which signals concern it."""

import pytest

from pipecd.controlplane.bus.signal import Signal
from pipecd.controlplane.bus.signal import Topic as Changed
from pipecd.controlplane.console.live_topic import read_topics
from pipecd.controlplane.datastore.stage_logs import StageRun
from pipecd.model.errors import UserMistake


@pytest.mark.parametrize(
    ("topic", "signal", "hears"),
    [
        pytest.param("apps", (Changed.APPLICATION, "a1"), True, id="any application"),
        pytest.param("apps", (Changed.DEPLOYMENT, "a1"), False, id="but no deployment"),
        pytest.param("app:a1", (Changed.APPLICATION, "a1"), True, id="this application"),
        pytest.param("app:a1", (Changed.APPLICATION, "a2"), False, id="but no other"),
        pytest.param("deployments", (Changed.DEPLOYMENT, "d9"), True, id="any deployment"),
        pytest.param("dep:d1", (Changed.DEPLOYMENT, "d1"), True, id="this deployment"),
        pytest.param("dep:d1", (Changed.STAGE_LOG, "d1/s1"), False, id="its log is another topic"),
        pytest.param("cmd:c1", (Changed.COMMAND, "c1"), True, id="this command"),
        pytest.param("pipeds", (Changed.PIPED, "p1"), True, id="any piped"),
        pytest.param("log:d1:s1:0", (Changed.STAGE_LOG, "d1/s1"), True, id="this log"),
        pytest.param("log:d1:s1:0", (Changed.STAGE_LOG, "d1/s2"), False, id="but no other"),
        pytest.param("log:d1:s1:0", (Changed.EVERYTHING, ""), True, id="anything may have changed"),
        pytest.param("dep:d1", (Changed.EVERYTHING, ""), True, id="anything, once more"),
    ],
)
def test_what_concerns_a_topic(topic: str, signal: tuple[Changed, str], hears: bool) -> None:
    (read,) = read_topics(topic)
    assert read.hears(Signal(signal[0], signal[1], "shop")) is hears


def test_the_id_of_a_stage_may_be_anything() -> None:
    (topic,) = read_topics("log:d1:a%2Cb%3Ac:2")
    assert topic.run == StageRun("d1", "a,b:c", 2)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="nothing"),
        pytest.param("weather", id="no such topic"),
        pytest.param("app", id="an application without its id"),
        pytest.param("apps:a1", id="all applications with an id"),
        pytest.param("log:d1", id="a log without a stage"),
        pytest.param("log:d1:s1:x", id="a log without a number"),
        pytest.param("log:d1:s1,log:d1:s2", id="two logs"),
        pytest.param(",".join(f"app:{n}" for n in range(21)), id="too many"),
    ],
)
def test_what_cannot_be_followed(text: str) -> None:
    with pytest.raises(UserMistake):
        read_topics(text)
