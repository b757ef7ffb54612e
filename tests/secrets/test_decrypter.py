# SPDX-License-Identifier: Apache-2.0
"""Secrets are decrypted with the keys of a piped, wherever those are, also the older ones."""

import base64
from pathlib import Path
from typing import Any

import boto3
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from pipecd.config.piped import (
    BOUND,
    UNBOUND,
    PreviousKeySpec,
    SecretManagementConfig,
    SecretManagementSpec,
)
from pipecd.model.errors import Denied, NotFound, PipecdError, Unavailable, UserMistake
from pipecd.secrets import hybrid
from pipecd.secrets.binding import Binding
from pipecd.secrets.decrypter import Decrypter, open_decrypter
from servers.google import GoogleCloud
from servers.objects import S3

FILE = Binding("shop", "site", "cart/app.pipecd.yaml")
RING = "projects/shop/locations/global/keyRings/ring/cryptoKeys/piped/cryptoKeyVersions"


def new_pair() -> tuple[bytes, bytes]:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), public


OLD, NEW, OTHER = new_pair(), new_pair(), new_pair()


def data(pem: bytes) -> str:
    return base64.b64encode(pem).decode()


def key_pair(pair: tuple[bytes, bytes], *previous: PreviousKeySpec) -> SecretManagementSpec:
    private, public = pair
    config = SecretManagementConfig(
        private_key_data=data(private), public_key_data=data(public), previous_keys=previous
    )
    return SecretManagementSpec(type="KEY_PAIR", config=config)


def before(private: bytes) -> PreviousKeySpec:
    return PreviousKeySpec(private_key_data=data(private))


def test_the_new_key_encrypts_and_the_old_one_still_decrypts() -> None:
    decrypter = open_decrypter(key_pair(NEW, before(OLD[0])))
    assert decrypter.public_key == NEW[1].strip()
    assert decrypter.decrypt(hybrid.encrypt(decrypter.public_key, "new"), FILE) == "new"
    assert decrypter.decrypt(hybrid.encrypt(OLD[1], "old"), FILE) == "old"


@pytest.mark.parametrize(
    ("previous", "error_text"),
    [
        pytest.param((), "encrypted for another key than this piped has", id="one key"),
        pytest.param((before(OLD[0]),), "encrypted for none of the 2 keys of this", id="two keys"),
    ],
)
def test_a_secret_for_an_unknown_key_is_reported(
    previous: tuple[PreviousKeySpec, ...], error_text: str
) -> None:
    with pytest.raises(UserMistake, match=error_text) as caught:
        open_decrypter(key_pair(NEW, *previous)).decrypt(hybrid.encrypt(OTHER[1], "hunter22"), FILE)
    assert "pipectl encrypt" in caught.value.hint
    assert "hunter22" not in str(caught.value)


def test_keys_that_do_not_belong_together_are_refused_at_the_start() -> None:
    with pytest.raises(UserMistake, match="does not belong to the private key"):
        open_decrypter(key_pair((NEW[0], OLD[1])))


def test_a_previous_key_that_is_no_key_is_refused_at_the_start() -> None:
    with pytest.raises(UserMistake, match="not a PEM block named PRIVATE KEY"):
        open_decrypter(key_pair(NEW, before(b"nonsense")))


def service(kind: str, name: str, *previous: PreviousKeySpec, **more: Any) -> SecretManagementSpec:
    config = SecretManagementConfig(key_name=name, previous_keys=previous, **more)
    return SecretManagementSpec(type=kind, config=config)


def comes_back(decrypter: Decrypter) -> bool:
    return decrypter.decrypt(hybrid.encrypt(decrypter.public_key, "höchst"), FILE) == "höchst"


def test_a_google_key_decrypts_each_secret_with_one_request(google: GoogleCloud) -> None:
    google.add_key(f"{RING}/2")
    decrypter = open_decrypter(service("GCP_KMS", f"{RING}/2"))
    text = hybrid.encrypt(decrypter.public_key, "hunter22")
    assert [decrypter.decrypt(text, FILE) for _ in range(3)] == ["hunter22"] * 3
    assert len([call for call in google.calls if call.endswith(":asymmetricDecrypt")]) == 1


def test_requests_to_google_use_the_given_service_accounts(
    google: GoogleCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    google.add_key(f"{RING}/1")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere")
    account = str(google.account)
    files = {"decrypt_service_account_file": account, "encrypt_service_account_file": account}
    assert comes_back(open_decrypter(service("GCP_KMS", f"{RING}/1", **files)))


def test_older_versions_of_a_key_of_google_and_files_still_decrypt(google: GoogleCloud) -> None:
    google.add_key(f"{RING}/1")
    google.add_key(f"{RING}/2")
    first = open_decrypter(service("GCP_KMS", f"{RING}/1")).public_key
    previous = [PreviousKeySpec(key_name=f"{RING}/1"), before(OLD[0])]
    decrypter = open_decrypter(service("GCP_KMS", f"{RING}/2", *previous))
    assert comes_back(decrypter)
    assert decrypter.decrypt(hybrid.encrypt(first, "version 1"), FILE) == "version 1"
    assert decrypter.decrypt(hybrid.encrypt(OLD[1], "a file"), FILE) == "a file"
    with pytest.raises(UserMistake, match="none of the 3 keys of this piped"):
        decrypter.decrypt(hybrid.encrypt(OTHER[1], "x"), FILE)


@pytest.mark.parametrize(
    ("broken", "kind", "error_text"),
    [
        pytest.param((403, {"error": {"status": "PERMISSION_DENIED", "message": "no useToDecrypt"}}), Denied, "denies access to the key .*: no useToDecrypt; check the service account", id="no permission"),
        pytest.param((404, {}), NotFound, "the key .* does not exist", id="no such key"),
        pytest.param((503, {}), Unavailable, "is unavailable for .*: HTTP 503", id="Google is unavailable"),
        pytest.param((412, {"error": {"status": "FAILED_PRECONDITION", "message": "disabled"}}), UserMistake, "rejected the request for the key .*: disabled", id="a disabled key"),
    ],
)  # fmt: skip
def test_an_error_of_google_is_reported(
    google: GoogleCloud, broken: Any, kind: type[PipecdError], error_text: str
) -> None:
    google.add_key(f"{RING}/1")
    decrypter = open_decrypter(service("GCP_KMS", f"{RING}/1"))
    google.broken = broken
    with pytest.raises(kind, match=error_text):
        comes_back(decrypter)
    google.broken = None
    assert comes_back(decrypter)


def test_a_key_of_google_needs_its_version_and_its_purpose(google: GoogleCloud) -> None:
    with pytest.raises(UserMistake, match="names no version of a key"):
        open_decrypter(service("GCP_KMS", RING.removesuffix("/cryptoKeyVersions")))
    google.add_key(f"{RING}/1")
    google.algorithm = "RSA_SIGN_PSS_2048_SHA256"
    with pytest.raises(UserMistake, match="is for RSA_SIGN_PSS_2048_SHA256; create it with"):
        open_decrypter(service("GCP_KMS", f"{RING}/1"))


def test_google_needs_credentials(google: GoogleCloud, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("{}")
    for file, error_text in [("nowhere", "No such file"), ("text", "no key of a service account")]:
        account = str(tmp_path / file)
        with pytest.raises(UserMistake, match=error_text):
            open_decrypter(service("GCP_KMS", f"{RING}/1", decrypt_service_account_file=account))


def aws_key(usage: str = "ENCRYPT_DECRYPT") -> str:
    kms: Any = boto3.client("kms")
    return kms.create_key(KeyUsage=usage, KeySpec="RSA_2048")["KeyMetadata"]["KeyId"]


def test_a_key_of_aws_opens_secrets(aws: S3) -> None:
    assert comes_back(open_decrypter(service("AWS_KMS", aws_key(), region="eu-west-1")))


def test_older_keys_of_aws_still_decrypt(aws: S3) -> None:
    first, second = aws_key(), aws_key()
    public = open_decrypter(service("AWS_KMS", first)).public_key
    decrypter = open_decrypter(service("AWS_KMS", second, PreviousKeySpec(key_name=first)))
    assert comes_back(decrypter)
    assert decrypter.decrypt(hybrid.encrypt(public, "the first"), FILE) == "the first"


def test_an_error_of_aws_is_reported(aws: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotFound, match=r"the key .* of AWS KMS does not exist; check its name and"):
        open_decrypter(service("AWS_KMS", "9c1d2cd0-3b4f-4b0e-9d52-0f6f5b0a8f11"))
    with pytest.raises(UserMistake, match="does not decrypt RSAES_OAEP_SHA_256; create it with"):
        open_decrypter(service("AWS_KMS", aws_key("SIGN_VERIFY")))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(Unavailable, match="AWS did not respond to the request for the key"):
        open_decrypter(service("AWS_KMS", "k"))
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(UserMistake, match="no AWS credentials to read the key k"):
        open_decrypter(service("AWS_KMS", "k"))
    monkeypatch.delenv("AWS_REGION")
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    with pytest.raises(UserMistake, match="no AWS region is configured; set AWS_REGION"):
        open_decrypter(service("AWS_KMS", "k"))


@pytest.mark.parametrize(
    ("kind", "module", "extra"),
    [
        pytest.param("AWS_KMS", "boto3", "aws", id="AWS"),
        pytest.param("GCP_KMS", "google.auth", "gcp", id="Google"),
    ],
)
def test_a_driver_that_is_not_installed_is_named(
    monkeypatch: pytest.MonkeyPatch, kind: str, module: str, extra: str
) -> None:
    import sys

    for name in ("pipecd.wire.aws", "pipecd.wire.google_cloud"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(
        UserMistake, match=rf"has no driver for .*install the extra {extra} of pipecd"
    ):
        open_decrypter(service(kind, f"{RING}/1"))


@pytest.mark.parametrize("form", [BOUND, UNBOUND])
def test_only_the_configured_forms_are_decrypted(form: str) -> None:
    management = key_pair(NEW).model_copy(update={"forms": (form,)})
    decrypter = open_decrypter(management)
    texts = {
        BOUND: hybrid.encrypt(NEW[1], "hunter22", binding=FILE),
        UNBOUND: hybrid.encrypt(NEW[1], "hunter22"),
    }
    assert decrypter.decrypt(texts.pop(form), FILE) == "hunter22"
    [(other, text)] = texts.items()
    for refused in (decrypter.decrypt, decrypter.placeholder):
        with pytest.raises(UserMistake, match=f"it is {other}, and secretManagement.forms of this"):
            refused(text, FILE)


def test_a_bound_secret_is_decrypted_with_older_keys() -> None:
    decrypter = open_decrypter(key_pair(NEW, before(OLD[0])))
    assert decrypter.decrypt(hybrid.encrypt(OLD[1], "old", binding=FILE), FILE) == "old"


def test_a_bound_secret_is_decrypted_with_the_keys_of_google(google: GoogleCloud) -> None:
    google.add_key(f"{RING}/2")
    decrypter = open_decrypter(service("GCP_KMS", f"{RING}/2"))
    text = hybrid.encrypt(decrypter.public_key, "hunter22", binding=FILE)
    assert decrypter.decrypt(text, FILE) == "hunter22"


def test_a_bound_secret_is_decrypted_with_the_keys_of_aws(aws: S3) -> None:
    decrypter = open_decrypter(service("AWS_KMS", aws_key()))
    text = hybrid.encrypt(decrypter.public_key, "hunter22", binding=FILE)
    assert decrypter.decrypt(text, FILE) == "hunter22"


def test_a_placeholder_is_the_same_as_long_as_the_secret_is_and_can_be_decoded() -> None:
    decrypter = open_decrypter(key_pair(NEW))
    one, two = (hybrid.encrypt(NEW[1], "hunter22") for _ in range(2))
    shown = decrypter.placeholder(one, FILE)
    assert shown == decrypter.placeholder(one, FILE) != decrypter.placeholder(two, FILE)
    assert base64.b64decode(shown, validate=True).decode().startswith("not-decrypted-")
    assert "=" not in shown
    with pytest.raises(UserMistake, match="it is not base64"):
        decrypter.placeholder("?", FILE)


def test_a_secret_that_is_too_short_to_be_masked_is_replaced_by_its_placeholder() -> None:
    decrypter = open_decrypter(key_pair(NEW))
    long, short = (hybrid.encrypt(NEW[1], text) for text in ("hunter22", "abc"))
    assert decrypter.decrypt_maskable(long, FILE) == "hunter22"
    assert decrypter.decrypt_maskable(short, FILE) == decrypter.placeholder(short, FILE)
