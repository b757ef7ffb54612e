# SPDX-License-Identifier: Apache-2.0
"""Where a cluster is and how a caller proves who it is, read from a kubeconfig or from the pod."""

import base64
import binascii
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipecd.plugins.kubernetes.manifest.body import list_at, map_at, text_at
from pipecd.sdk import UserMistake
from pipecd.sdk.yaml import read_documents

_ADDRESS = re.compile(r"https?://[^\s/]+(?:/\S*)?")
# Who says something of certificates means TLS.
_SECURE = ("certificate-authority", "client-certificate", "insecure-skip-tls-verify")

IN_CLUSTER = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True)
class Program:
    """A program that prints credentials, as cloud providers bring them."""

    command: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    api_version: str
    hint: str = ""


@dataclass(frozen=True)
class Connection:
    """How to reach an API server; secrets do not show in its text."""

    server: str
    authority: str = ""
    verify: bool = True
    server_name: str = ""
    token: str = field(default="", repr=False)
    token_file: Path | None = None
    user: str = ""
    password: str = field(default="", repr=False)
    certificate: str = ""
    key: str = field(default="", repr=False)
    program: Program | None = None
    proxy: str = ""
    namespace: str = ""


def connection_of(master_url: str, kubeconfig: str) -> Connection:
    """Returns the connection of a deploy target; with neither it is the cluster we run in."""
    if not master_url and not kubeconfig:
        return in_cluster(os.environ, IN_CLUSTER)
    if not kubeconfig:
        return Connection(server=_address(master_url, "masterURL of the deploy target"))
    path = Path(kubeconfig).expanduser()
    try:
        text = path.read_text()
    except OSError as e:
        raise UserMistake(
            f"the kubeconfig {path} cannot be read: {e.strerror}",
            hint="correct kubeConfigPath of the deploy target",
        ) from e
    return read_kubeconfig(text, file=str(path), master_url=master_url)


def in_cluster(environment: Mapping[str, str], directory: Path) -> Connection:
    """Returns the connection that Kubernetes gives to every pod."""
    host, port = (environment.get(f"KUBERNETES_SERVICE_{name}", "") for name in ("HOST", "PORT"))
    token = directory / "token"
    if not host or not token.exists():
        raise UserMistake(
            "this piped does not run in a cluster",
            hint="set kubeConfigPath or masterURL in the deploy target",
        )
    return Connection(
        server=f"https://{f'[{host}]' if ':' in host else host}:{port or 443}",
        authority=(directory / "ca.crt").read_text(),
        token_file=token,
        namespace=(directory / "namespace").read_text().strip(),
    )


def read_kubeconfig(text: str, *, file: str, master_url: str = "") -> Connection:
    """Returns the connection of the current context."""
    documents = read_documents(text, file=file)
    config = documents[0].value if documents else None
    current = text_at(config, "current-context")
    if not current:
        raise UserMistake(
            f"{file} has no current-context", hint="choose one by kubectl config use-context"
        )
    context = map_at(_named(config, "contexts", current, file), "context")
    cluster = map_at(_named(config, "clusters", text_at(context, "cluster"), file), "cluster")
    user = map_at(_named(config, "users", text_at(context, "user"), file), "user")
    server = master_url or text_at(cluster, "server")
    is_secure = any(key.startswith(_SECURE) for key in (*cluster, *user))
    beside = Path(file).parent
    token_file = text_at(user, "tokenFile")
    return Connection(
        server=_address(server, f"server of the cluster in {file}", is_secure=is_secure),
        authority=_content(cluster, "certificate-authority", beside),
        verify=not cluster.get("insecure-skip-tls-verify"),
        server_name=text_at(cluster, "tls-server-name"),
        token=text_at(user, "token"),
        token_file=beside / token_file if token_file else None,
        user=text_at(user, "username"),
        password=text_at(user, "password"),
        certificate=_content(user, "client-certificate", beside),
        key=_content(user, "client-key", beside),
        program=_program(map_at(user, "exec"), beside),
        proxy=text_at(cluster, "proxy-url"),
        namespace=text_at(context, "namespace"),
    )


def _named(config: Any, what: str, name: str, file: str) -> Mapping[str, Any]:
    for entry in list_at(config, what):
        if text_at(entry, "name") == name:
            return entry
    raise UserMistake(
        f"{file}: {what} has no {name!r}",
        hint="its parts name each other; write it anew as your cluster's provider tells",
    )


def _address(server: str, whose: str, *, is_secure: bool = False) -> str:
    """Returns the address of an API server; as for kubectl it may lack its scheme."""
    scheme = "" if "://" in server else ("https://" if is_secure else "http://")
    address = f"{scheme}{server}".rstrip("/")
    if not _ADDRESS.fullmatch(address):
        raise UserMistake(
            f"the {whose} is no address: {server!r}", hint="write it like https://10.0.0.1:6443"
        )
    return address


def _content(entry: Mapping[str, Any], field_name: str, beside: Path) -> str:
    """Returns what stands in the kubeconfig itself, or in the file that it names."""
    inline = text_at(entry, f"{field_name}-data")
    try:
        if inline:
            return base64.b64decode(inline).decode()
        path = text_at(entry, field_name)
        return (beside / path).read_text() if path else ""
    except (OSError, binascii.Error, UnicodeDecodeError) as e:
        raise UserMistake(
            f"{field_name} of the kubeconfig cannot be read: {e}",
            hint=f"give a file of PEM, or PEM in base64 at {field_name}-data",
        ) from e


def _program(spec: Mapping[str, Any], beside: Path) -> Program | None:
    command = text_at(spec, "command")
    if not command:
        return None
    return Program(
        command=str(beside / command) if "/" in command else command,
        arguments=tuple(map(str, list_at(spec, "args"))),
        environment={
            text_at(entry, "name"): text_at(entry, "value") for entry in list_at(spec, "env")
        },
        api_version=text_at(spec, "apiVersion"),
        hint=text_at(spec, "installHint"),
    )
