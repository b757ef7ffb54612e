# SPDX-License-Identifier: Apache-2.0
"""Signatures of each Git host are valid only with the secret of the project."""

import base64
import hmac
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecd.controlplane.webhooks.signature import has_signature, is_signed

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef").decode()
BODY = b'{"ref": "refs/heads/main"}'


def digest(secret: str = SECRET, body: bytes = BODY, algorithm: str = "sha256") -> str:
    return hmac.new(secret.encode(), body, algorithm).hexdigest()


def standard(
    key: bytes = b"0123456789abcdef", *, sent: float = 0.0, id: str = "d1", body: bytes = BODY
) -> dict[str, str]:
    moment = str(int(NOW.timestamp() + sent))
    made = hmac.digest(key, f"{id}.{moment}.".encode() + body, "sha256")
    return {
        "webhook-id": id,
        "webhook-timestamp": moment,
        "webhook-signature": f"v1,{base64.b64encode(made).decode()}",
    }


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({"x-hub-signature-256": f"sha256={digest()}"}, id="GitHub"),
        pytest.param(
            {"x-hub-signature": "sha1=0", "x-hub-signature-256": f"sha256={digest()}"},
            id="GitHub with an additional SHA-1 signature",
        ),
        pytest.param({"x-hub-signature": f"sha256={digest()}"}, id="Bitbucket"),
        pytest.param({"x-gitea-signature": digest()}, id="Gitea"),
        pytest.param({"x-forgejo-signature": digest().upper()}, id="Forgejo"),
        pytest.param({"x-gitlab-token": SECRET}, id="GitLab with a secret token"),
        pytest.param(standard(), id="GitLab with a signing token, and other standard webhooks"),
        pytest.param(standard(SECRET.encode()), id="a shell that uses the text of the secret"),
        pytest.param(standard(sent=-299), id="a clock that is five minutes behind"),
        pytest.param(standard(sent=299), id="a clock that is five minutes ahead"),
        pytest.param(
            {**standard(), "webhook-signature": f"v2,x v1,y {standard()['webhook-signature']}"},
            id="several signatures of a sender that rotates its secret",
        ),
    ],
)
def test_a_valid_signature(headers: dict[str, str]) -> None:
    assert is_signed(headers, BODY, [SECRET], NOW)
    assert is_signed(headers, BODY, ["another", SECRET], NOW)
    assert not is_signed(headers, BODY, ["another"], NOW)
    assert not is_signed(headers, BODY, [], NOW)
    if "x-gitlab-token" not in headers:
        assert not is_signed(headers, BODY + b" ", [SECRET], NOW)


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({}, id="no header"),
        pytest.param({"x-hub-signature-256": digest()}, id="no algorithm"),
        pytest.param({"x-hub-signature-256": "sha256="}, id="no signature"),
        pytest.param({"x-hub-signature": f"sha1={digest(algorithm='sha1')}"}, id="a weak digest"),
        pytest.param({"x-gitea-signature": ""}, id="an empty signature"),
        pytest.param({"x-gitlab-token": ""}, id="an empty token"),
        pytest.param({"x-gitlab-token": SECRET[:-1]}, id="a part of the token"),
        pytest.param({"x-gitlab-token": "gé" + SECRET}, id="a token with non-ASCII letters"),
        pytest.param(
            {"x-gitea-signature": "0" * 64, "x-hub-signature-256": f"sha256={digest()}"},
            id="a wrong signature beside a right one",
        ),
        pytest.param(
            {**standard(b"wrong"), "x-gitlab-token": SECRET}, id="a wrong signature and a token"
        ),
        pytest.param(standard(sent=-301), id="a replay"),
        pytest.param(standard(sent=301), id="a delivery from the future"),
        pytest.param({**standard(), "webhook-id": "d2"}, id="another delivery's signature"),
        pytest.param(
            {**standard(), "webhook-timestamp": "soon"}, id="a timestamp that is not a number"
        ),
        pytest.param({**standard(), "webhook-timestamp": "9" * 400}, id="a timestamp out of range"),
        pytest.param({**standard(), "webhook-signature": "v1"}, id="a version without a signature"),
    ],
)
def test_an_invalid_signature(headers: dict[str, str]) -> None:
    assert not is_signed(headers, BODY, [SECRET], NOW)


def test_a_secret_that_is_not_base64_is_used_as_text() -> None:
    assert is_signed(standard(b"not base64!"), BODY, ["not base64!"], NOW)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        pytest.param({"x-event-key": "diagnostics:ping"}, False, id="no"),
        pytest.param({"x-hub-signature": "sha256=00"}, True, id="yes"),
    ],
)
def test_whether_a_delivery_has_a_signature(headers: dict[str, str], expected: bool) -> None:
    assert has_signature(headers) is expected


_NAMES = st.sampled_from(
    [
        "x-hub-signature-256",
        "x-hub-signature",
        "x-gitea-signature",
        "x-forgejo-signature",
        "x-gogs-signature",
        "x-gitlab-token",
        "webhook-signature",
        "webhook-timestamp",
        "webhook-id",
    ]
)


@given(headers=st.dictionaries(_NAMES, st.text(max_size=80)), body=st.binary(max_size=50))
def test_random_headers_are_never_valid(headers: dict[str, str], body: bytes) -> None:
    assert not is_signed(headers, body, [SECRET], NOW)
