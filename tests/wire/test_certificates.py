# SPDX-License-Identifier: Apache-2.0
"""Each mistake with certificates has a sentence of its own, at the server and at its clients."""

from datetime import timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from structlog.testing import capture_logs

from pipecd.model.errors import UserMistake
from pipecd.wire.certificates import check_server_certificate
from pipecd.wire.connection_problem import find_problem
from pipecd.wire.server import TlsFiles, grpc_server
from pipecd.wire.table import RpcTable
from servers.certificates import self_signed


def written(directory: Path, name: str, valid_from: timedelta) -> tuple[str, str]:
    directory = directory / name
    directory.mkdir()
    return self_signed(directory, valid_from=valid_from)


NOW, PAST, FUTURE = timedelta(minutes=-5), timedelta(days=-3), timedelta(days=3)


@pytest.mark.parametrize(
    ("valid_from", "host", "trusted", "what", "hint"),
    [
        pytest.param(NOW, "localhost", False, "is not trusted: self-signed", "--cert-file", id="an unknown authority"),
        pytest.param(PAST, "localhost", True, "has expired", "renew it at the server", id="expired"),
        pytest.param(FUTURE, "localhost", True, "is not valid yet", "clock of this machine", id="not valid yet"),
        pytest.param(NOW, "127.0.0.2", True, "is for another host (IP address mismatch", "or add 127.0.0.2 to the certificate", id="another host"),
    ],
)  # fmt: skip
async def test_a_client_says_why_it_refuses_a_certificate(
    table: RpcTable[str],
    tmp_path: Path,
    valid_from: timedelta,
    host: str,
    what: str,
    hint: str,
    *,
    trusted: bool,
) -> None:
    cert_file, key_file = written(tmp_path, "tls", valid_from)
    tls = TlsFiles(cert_file, key_file)
    async with grpc_server([table], host="0.0.0.0", port=0, tls=tls, grace=0) as port:
        address = f"{host}:{port}"
        problem = await find_problem(
            address, insecure=False, cert_file=cert_file if trusted else ""
        )
    assert problem is not None
    assert f"the certificate of {address} {what}" in problem.what
    assert hint in problem.hint


def test_a_server_refuses_files_that_it_cannot_use(tmp_path: Path) -> None:
    (cert, key), (_, other) = (written(tmp_path, name, NOW) for name in ("one", "two"))
    pem = Path(key).read_bytes()
    locked = tmp_path / "locked.pem"
    locked.write_bytes(
        serialization.load_pem_private_key(pem, None).private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"s3cret"),
        )
    )
    broken = tmp_path / "broken.pem"
    broken.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    mistakes = {
        (cert, other): f"the private key in {other} is not the one of the certificate in {cert}",
        (key, key): f"{key} is not a file of PEM certificates",
        (cert, cert): f"{cert} is not a file with a private key in PEM",
        (cert, str(locked)): f"the private key in {locked} is encrypted with a password",
        (str(broken), key): f"the TLS files {broken} and {key} cannot be used",
        (cert, "nothing.pem"): "cannot read the TLS file nothing.pem: No such file or directory",
    }
    for (cert_file, key_file), message in mistakes.items():
        with pytest.raises(UserMistake) as refused:
            check_server_certificate(cert_file, key_file)
        assert refused.value.message.startswith(message)
        assert refused.value.hint


@pytest.mark.parametrize(
    ("valid_from", "events"),
    [
        pytest.param(NOW, [], id="valid"),
        pytest.param(PAST, ["the certificate has expired"], id="expired"),
        pytest.param(FUTURE, ["the certificate is not valid yet"], id="not valid yet"),
    ],
)
def test_a_server_warns_of_a_certificate_that_clients_refuse(
    tmp_path: Path, valid_from: timedelta, events: list[str]
) -> None:
    files = written(tmp_path, "tls", valid_from)
    with capture_logs() as logged:
        check_server_certificate(*files)
    assert [line["event"] for line in logged] == events
    assert all(line["log_level"] == "warning" and line["file"] == files[0] for line in logged)
