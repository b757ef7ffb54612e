# SPDX-License-Identifier: Apache-2.0
"""Receivers and routes of notifications are validated, and their secrets masked."""

from typing import Any

import pytest
import yaml

from pipecd.config.application import EVENTS
from pipecd.config.catalog import load_catalog
from pipecd.config.piped_mask import MASK, reported_config
from pipecd.config.read import read_file, read_piped
from pipecd.config.report import ConfigMistake
from pipecd.piped.notify.event import EventType

CATALOG = load_catalog()
HEAD = """\
apiVersion: pipecd.dev/v1beta1
kind: Piped
spec:
  projectID: shop
  pipedID: p1
  pipedKeyFile: /k
  apiAddress: localhost:9080
  notifications:
"""


def receiver(fields: str) -> str:
    return f"    receivers: [{{name: r, {fields}}}]\n"


def route(fields: str) -> str:
    return f"    routes: [{{receiver: r, {fields}}}]\n    receivers: [{{name: r}}]\n"


def read(lines: str) -> Any:
    return read_piped(HEAD + lines, file="p.yaml", catalog=CATALOG).spec


AT = "spec.notifications.receivers[0]"
MAIL = "host: h, from: a@x.com, to: [b@x.com]"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        pytest.param("teams: {}", f"{AT}.teams: exactly one of hookURL and hookURLFile", id="Teams without an address"),
        pytest.param("discord: {hookURL: a, hookURLFile: b}", f"{AT}.discord: exactly one of hookURL and hookURLFile", id="Discord with two addresses"),
        pytest.param("email: {from: a@x.com, to: [b@x.com]}", f"{AT}.email.host: host must be set", id="mail without a server"),
        pytest.param("email: {host: h, to: [b@x.com]}", f"{AT}.email.from: must be an address", id="mail without a sender"),
        pytest.param("email: {host: h, from: a@x.com}", f"{AT}.email.to: name at least one", id="mail without recipients"),
        pytest.param("email: {host: h, from: a@x.com, to: [b@x.com, 'Bob <c@x.com>']}", f"{AT}.email.to[1]: must be an address", id="mail to a name"),
        pytest.param(f"email: {{{MAIL}, port: 70000}}", f"{AT}.email.port: must be a port", id="a port that does not exist"),
        pytest.param(f"email: {{{MAIL}, tls: SSL}}", f"{AT}.email.tls", id="an unknown protection"),
        pytest.param(f"email: {{{MAIL}, password: p}}", f"{AT}.email.username: must be set", id="a password without a login"),
        pytest.param(f"email: {{{MAIL}, username: u, password: p, passwordFile: f}}", f"{AT}.email.passwordFile: only one", id="two passwords"),
        pytest.param("webhook: {url: u, signingSecret: a, signingSecretFile: b}", f"{AT}.webhook.signingSecretFile: only one", id="two signing secrets"),
        pytest.param("teams: {hookURL: a}, discord: {hookURL: b}", f"{AT}: only one of slack, webhook", id="two kinds in one receiver"),
        pytest.param("slack: {hookURL: a}, teams: {hookURL: b}", f"{AT}: only one of slack, webhook", id="an older and a newer kind in one receiver"),
        pytest.param("templates: [{event: STAGE_EXPLODED, text: t}]", f'{AT}.templates[0].event: event "STAGE_EXPLODED" does not exist', id="a template for no event"),
    ],
)  # fmt: skip
def test_a_receiver_is_refused_with(fields: str, message: str) -> None:
    with pytest.raises(ConfigMistake) as caught:
        read(receiver(fields))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param("slack: {hookURL: a}, webhook: {url: b}", id="Slack and a webhook, as upstream has it"),
        pytest.param("teams: {hookURLFile: a, mentionedUsers: [ann@x.com]}", id="Teams"),
        pytest.param("discord: {hookURL: a, mentionedUsers: ['1'], mentionedRoles: ['2']}", id="Discord"),
        pytest.param(f"email: {{{MAIL}, tls: NONE, port: 2525}}", id="mail"),
        pytest.param("teams: {hookURL: a}, templates: [{title: t}, {event: STAGE_FAILED, text: t}]", id="templates"),
    ],
)  # fmt: skip
def test_a_receiver_may_be(fields: str) -> None:
    assert read(receiver(fields)).notifications.receivers[0].name == "r"


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        pytest.param("teams: {hookURL: s3cret}", ("teams", "hookURL"), id="the address of Teams"),
        pytest.param("discord: {hookURL: s3cret}", ("discord", "hookURL"), id="the address of Discord"),
        pytest.param(f"email: {{{MAIL}, username: u, password: s3cret}}", ("email", "password"), id="the password for mail"),
        pytest.param("webhook: {url: u, signingSecret: s3cret}", ("webhook", "signingSecret"), id="the signing secret"),
    ],
)  # fmt: skip
def test_a_report_hides(fields: str, path: tuple[str, str]) -> None:
    spec = read(receiver(fields))
    report = reported_config(spec)
    assert "s3cret" not in report
    assert "s3cret" not in repr(spec)
    shown = yaml.safe_load(report)["notifications"]["receivers"][0]
    assert shown[path[0]][path[1]] == MASK


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        pytest.param("events: [DEPLOYMENT_FAILED, NO_SUCH]", "routes[0].events[1]", id="an event"),
        pytest.param("ignoreEvents: [EVENT_STAGE_FAILED]", "routes[0].ignoreEvents[0]", id="an event with the prefix EVENT_"),
        pytest.param("groups: [STAGES]", "routes[0].groups[0]", id="a group"),
        pytest.param("ignoreGroups: [APPLICATION]", "routes[0].ignoreGroups[0]", id="an ignored group"),
    ],
)  # fmt: skip
def test_an_unknown_event_or_group_is_a_warning(fields: str, path: str) -> None:
    config = read_file(HEAD + route(fields), file="p.yaml", catalog=CATALOG)
    (warning,) = config.warnings
    assert path in str(warning)
    assert "does not exist" in str(warning)


def test_existing_events_and_groups_have_no_warning() -> None:
    lines = route(f"events: [{', '.join(EVENTS)}], groups: [STAGE, PIPED]")
    assert read_file(HEAD + lines, file="p.yaml", catalog=CATALOG).warnings == ()


def test_the_events_of_the_configuration_are_those_of_piped() -> None:
    assert set(EVENTS) == {kind.name for kind in EventType}
