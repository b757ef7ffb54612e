# SPDX-License-Identifier: Apache-2.0
"""Checks the certificate of a server before it listens, and words why a client refuses one.

gRPC prints lines of its own about files that it cannot use, and then says that a port is taken.
"""

import ssl
from pathlib import Path

import structlog

from pipecd.model.errors import UserMistake

log = structlog.get_logger()

_HINT = "check --cert-file and --key-file"
# Codes of OpenSSL: X509_V_ERR_….
_NOT_YET_VALID, _EXPIRED = 9, 10
_OTHER_HOST, _OTHER_ADDRESS = 62, 64


def check_server_certificate(cert_file: str, key_file: str) -> None:
    """Refuses files that a server cannot use; warns of a certificate that clients refuse by now."""
    certificate, key = _read(cert_file), _read(key_file)
    if "-----BEGIN CERTIFICATE-----" not in certificate:
        raise UserMistake(f"{cert_file} is not a file of PEM certificates", hint=_HINT)
    if "PRIVATE KEY-----" not in key:
        raise UserMistake(f"{key_file} is not a file with a private key in PEM", hint=_HINT)
    if "ENCRYPTED" in key:
        raise UserMistake(
            f"the private key in {key_file} is encrypted with a password",
            hint=f"decrypt it with: openssl pkey -in {key_file} -out FILE",
        )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        server.load_cert_chain(cert_file, key_file)
    except ssl.SSLError as e:
        if e.reason == "KEY_VALUES_MISMATCH":
            raise UserMistake(
                f"the private key in {key_file} is not the one of the certificate in {cert_file}",
                hint=_HINT,
            ) from e
        raise UserMistake(
            f"the TLS files {cert_file} and {key_file} cannot be used: {e}", hint=_HINT
        ) from e
    match _verify_code(server, cert_file):
        case int(code) if code == _EXPIRED:
            hint = "renew it and restart; no client can connect until then"
            log.warning("the certificate has expired", file=cert_file, hint=hint)
        case int(code) if code == _NOT_YET_VALID:
            hint = "check the clock of this machine; no client can connect until then"
            log.warning("the certificate is not valid yet", file=cert_file, hint=hint)
        case _:
            pass


def refused_certificate(
    error: ssl.SSLCertVerificationError, address: str, host: str
) -> tuple[str, str]:
    """Why a client refuses the certificate at an address, and what to do."""
    match error.verify_code:
        case code if code == _EXPIRED:
            return (
                f"the certificate of {address} has expired",
                "renew it at the server, or correct the clock of this machine",
            )
        case code if code == _NOT_YET_VALID:
            return (
                f"the certificate of {address} is not valid yet",
                "correct the clock of this machine, or of the one that issued it",
            )
        case code if code in (_OTHER_HOST, _OTHER_ADDRESS):
            return (
                f"the certificate of {address} is for another host "
                f"({error.verify_message.rstrip('.')})",
                f"use a host name that the certificate names, or add {host} to the certificate",
            )
        case _:
            return (
                f"the certificate of {address} is not trusted: {error.verify_message}",
                "name the certificate of its authority with --cert-file",
            )


def _read(file: str) -> str:
    try:
        return Path(file).read_text("ascii", errors="replace")
    except OSError as e:
        raise UserMistake(f"cannot read the TLS file {file}: {e.strerror}", hint=_HINT) from e


def _verify_code(server: ssl.SSLContext, cert_file: str) -> int | None:
    """The code of OpenSSL why a client that trusts exactly these certificates refuses them."""
    client = ssl.create_default_context(cafile=cert_file)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(to_client, to_server),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLCertVerificationError as e:
                return e.verify_code
            except ssl.SSLError:
                return None
    return None
