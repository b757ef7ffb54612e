# SPDX-License-Identifier: Apache-2.0
"""Connections from a kubeconfig, a master URL or the service account of a pod."""

import base64
from pathlib import Path

import pytest

from pipecd.plugins.kubernetes.client import open_client
from pipecd.plugins.kubernetes.kubeconfig import (
    Connection,
    in_cluster,
    load_connection,
    read_kubeconfig,
)
from pipecd.sdk import UserMistake

TEXT = """\
apiVersion: v1
kind: Config
current-context: here
contexts:
- {name: here, context: {cluster: c, user: u, namespace: team}}
- {name: there, context: {cluster: d, user: u}}
clusters:
- name: c
  cluster: {server: "https://one:6443/", certificate-authority-data: AUTHORITY}
- name: d
  cluster: {server: "https://two:6443", insecure-skip-tls-verify: true}
users:
- name: u
  user: {token: "very-secret"}
""".replace("AUTHORITY", base64.b64encode(b"PEM").decode())


def test_the_current_context_is_used() -> None:
    assert read_kubeconfig(TEXT, file="config") == Connection(
        server="https://one:6443", authority="PEM", token="very-secret", namespace="team"
    )


def test_master_url_takes_precedence_over_the_kubeconfig() -> None:
    assert read_kubeconfig(TEXT, file="c", master_url="https://x").server == "https://x"


@pytest.mark.parametrize(
    ("text", "master_url", "expected"),
    [
        pytest.param(TEXT, "10.0.0.1:6443", "https://10.0.0.1:6443", id="with certificates"),
        pytest.param("", "10.0.0.1:8080/", "http://10.0.0.1:8080", id="without any"),
    ],
)
def test_the_scheme_of_a_server_is_optional(
    tmp_path: Path, text: str, master_url: str, expected: str
) -> None:
    (tmp_path / "config").write_text(text)
    kubeconfig = str(tmp_path / "config") if text else ""
    assert load_connection(master_url, kubeconfig).server == expected


async def test_an_invalid_certificate_authority_is_refused() -> None:
    with pytest.raises(UserMistake, match=r"is no certificate: .*; give certificates in PEM"):
        async with open_client(read_kubeconfig(TEXT, file="config")):
            pass


def test_secrets_are_not_in_the_repr_of_a_connection() -> None:
    assert "very-secret" not in repr(read_kubeconfig(TEXT, file="config"))


def test_paths_are_relative_to_the_kubeconfig(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("FILE")
    text = TEXT.replace("certificate-authority-data: UEVN", "certificate-authority: ca.pem")
    (tmp_path / "config").write_text(text)
    assert load_connection("", str(tmp_path / "config")).authority == "FILE"


def test_an_exec_plugin_provides_the_token() -> None:
    program = "{exec: {apiVersion: client.authentication.k8s.io/v1, command: ./aws, args: [a, 1]}}"
    connection = read_kubeconfig(
        TEXT.replace('{token: "very-secret"}', program), file="/dir/config"
    )
    assert connection.exec_plugin is not None
    assert (connection.exec_plugin.command, connection.exec_plugin.arguments) == (
        "/dir/aws",
        ("a", "1"),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("", "config has no current-context; choose one", id="an empty file"),
        pytest.param("current-context: x", "contexts has no 'x'", id="a missing context"),
        pytest.param(TEXT.replace("user: u", "user: v", 1), "users has no 'v'", id="no such user"),
        pytest.param(
            TEXT.replace("https://one:6443/", ""),
            "is no address: ''; write it like",
            id="an empty address",
        ),
        pytest.param(
            TEXT.replace("https://one:6443/", "over there"), "is no address", id="no address"
        ),
        pytest.param(TEXT.replace("UEVN", "UEV"), "certificate-authority of the", id="no base64"),
    ],
)
def test_an_invalid_kubeconfig_is_refused(text: str, message: str) -> None:
    with pytest.raises(UserMistake, match=message):
        read_kubeconfig(text, file="config")


def test_a_missing_kubeconfig_is_refused() -> None:
    with pytest.raises(UserMistake, match=r"cannot be read.*correct kubeConfigPath"):
        load_connection("", "/missing/config")


def test_the_service_account_of_the_pod_is_used_in_a_cluster(tmp_path: Path) -> None:
    for name, content in (("token", "t"), ("ca.crt", "CA"), ("namespace", "ns\n")):
        (tmp_path / name).write_text(content)
    environment = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    connection = in_cluster(environment, tmp_path)
    assert connection == Connection(
        server="https://[fd00::1]:443",
        authority="CA",
        token_file=tmp_path / "token",
        namespace="ns",
    )
    with pytest.raises(UserMistake, match="does not run in a cluster"):
        in_cluster({}, tmp_path)
