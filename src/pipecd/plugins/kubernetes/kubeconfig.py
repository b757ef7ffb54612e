# SPDX-License-Identifier: Apache-2.0
"""The connection to a cluster: server and credentials from a kubeconfig or the pod."""

import base64
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipecd.sdk import UserMistake
from pipecd.sdk.unstructured import list_at, map_at, text_at
from pipecd.sdk.yaml import read_documents

_URL = re.compile(r"https?://[^\s/]+(?:/\S*)?")
# A server without a scheme uses TLS if one of these keys is set.
_TLS_KEYS = ("certificate-authority", "client-certificate", "insecure-skip-tls-verify")

IN_CLUSTER = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True)
class ExecPlugin:
    """An exec credential plugin: a program that prints credentials."""

    command: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    api_version: str
    hint: str = ""


@dataclass(frozen=True)
class Connection:
    """How to connect to an API server; secrets are not in its repr."""

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
    exec_plugin: ExecPlugin | None = None
    proxy: str = ""
    namespace: str = ""


def load_connection(master_url: str, kubeconfig: str) -> Connection:
    """Returns the connection of a deploy target, by default to the cluster piped runs in."""
    if not master_url and not kubeconfig:
        return in_cluster(os.environ, IN_CLUSTER)
    if not kubeconfig:
        return Connection(server=_server_url(master_url, "masterURL of the deploy target"))
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
    """Returns the connection by the service account of the pod."""
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
    context = map_at(_entry(config, "contexts", current, file), "context")
    cluster = map_at(_entry(config, "clusters", text_at(context, "cluster"), file), "cluster")
    user = map_at(_entry(config, "users", text_at(context, "user"), file), "user")
    server = master_url or text_at(cluster, "server")
    uses_tls = any(key.startswith(_TLS_KEYS) for key in (*cluster, *user))
    directory = Path(file).parent
    token_file = text_at(user, "tokenFile")
    return Connection(
        server=_server_url(server, f"server of the cluster in {file}", uses_tls=uses_tls),
        authority=_pem(cluster, "certificate-authority", directory),
        verify=not cluster.get("insecure-skip-tls-verify"),
        server_name=text_at(cluster, "tls-server-name"),
        token=text_at(user, "token"),
        token_file=directory / token_file if token_file else None,
        user=text_at(user, "username"),
        password=text_at(user, "password"),
        certificate=_pem(user, "client-certificate", directory),
        key=_pem(user, "client-key", directory),
        exec_plugin=_exec_plugin(map_at(user, "exec"), directory),
        proxy=text_at(cluster, "proxy-url"),
        namespace=text_at(context, "namespace"),
    )


def _entry(config: Any, section: str, name: str, file: str) -> Mapping[str, Any]:
    for entry in list_at(config, section):
        if text_at(entry, "name") == name:
            return entry
    raise UserMistake(
        f"{file}: {section} has no {name!r}",
        hint="create the kubeconfig again as your cluster's provider describes",
    )


def _server_url(server: str, field: str, *, uses_tls: bool = False) -> str:
    """Returns the URL of an API server; as for kubectl the scheme is optional."""
    scheme = "" if "://" in server else ("https://" if uses_tls else "http://")
    address = f"{scheme}{server}".rstrip("/")
    if not _URL.fullmatch(address):
        raise UserMistake(
            f"the {field} is no address: {server!r}", hint="write it like https://10.0.0.1:6443"
        )
    return address


def _pem(entry: Mapping[str, Any], field_name: str, directory: Path) -> str:
    """Returns PEM from the kubeconfig itself, or from the file that it names."""
    inline = text_at(entry, f"{field_name}-data")
    try:
        if inline:
            return base64.b64decode(inline).decode()
        path = text_at(entry, field_name)
        return (directory / path).read_text() if path else ""
    except (OSError, ValueError) as e:
        raise UserMistake(
            f"{field_name} of the kubeconfig cannot be read: {e}",
            hint=f"give a file of PEM, or PEM in base64 at {field_name}-data",
        ) from e


def _exec_plugin(spec: Mapping[str, Any], directory: Path) -> ExecPlugin | None:
    command = text_at(spec, "command")
    if not command:
        return None
    return ExecPlugin(
        command=str(directory / command) if "/" in command else command,
        arguments=tuple(map(str, list_at(spec, "args"))),
        environment={
            text_at(entry, "name"): text_at(entry, "value") for entry in list_at(spec, "env")
        },
        api_version=text_at(spec, "apiVersion"),
        hint=text_at(spec, "installHint"),
    )
