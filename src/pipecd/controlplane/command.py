# SPDX-License-Identifier: Apache-2.0
"""The commands `pipecd server` and `pipecd ops`."""

import asyncio
import gc
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import structlog

from pipecd.commandline import flags
from pipecd.commandline.signals import run_until_signal
from pipecd.config.read import read_control_plane
from pipecd.controlplane.app import (
    OpsSettings,
    Ports,
    ServerSettings,
    control_plane,
    operations,
)
from pipecd.controlplane.auth.request_origin import parse_trusted_proxies
from pipecd.controlplane.stores import open_stores
from pipecd.controlplane.usecases.access import Access
from pipecd.controlplane.usecases.projects import ProjectUseCases, StaticAdmin, check_id
from pipecd.controlplane.usecases.session_endings import SessionEndings
from pipecd.model.count import counted
from pipecd.model.errors import UserMistake
from pipecd.observe.log import configure
from pipecd.observe.telemetry import Telemetry
from pipecd.program.service_manager import report_ready
from pipecd.secrets.keyfile import KEY_BYTES
from pipecd.wire.admission import raise_file_limit
from pipecd.wire.certificates import check_server_certificate
from pipecd.wire.server import TlsFiles

log = structlog.get_logger()
_LOOPBACK = "127.0.0.1"
_FIRST_PROJECT = "PIPECD_FIRST_PROJECT"
_FIRST_ADMIN_PASSWORD = "PIPECD_FIRST_ADMIN_PASSWORD"  # noqa: S105 - the name of a variable.
_ALL_INTERFACES = "0.0.0.0"  # noqa: S104


# `\b` keeps click from wrapping the lines that follow.
# Those of the guides and of our layouts.
_SAMPLE_STATE_KEYS = ("a-long-random-text", "change-this-to-a-long-random-text", "STATE_KEY")
_MINIMAL_CONFIGURATION = """\b
A minimal configuration, with everything in one directory:

\b
  apiVersion: pipecd.dev/v1beta1
  kind: ControlPlane
  spec:
    address: http://localhost:9090
    stateKey: a-long-random-text
    datastore:
      type: SQLITE
      config:
        path: /var/lib/pipecd/pipecd.db
    filestore:
      type: LOCAL
      config:
        path: /var/lib/pipecd/files

\b
Save it as control-plane.yaml, then:

\b
  (umask 077; openssl rand -hex 32 > encryption-key)
  pipecd server --config-file control-plane.yaml \\
    --encryption-key-file encryption-key --insecure-cookie

\b
The server logs a link that creates the first project. --insecure-cookie is
for plain HTTP; leave it out where the console is served over TLS.
"""


@click.command(epilog=_MINIMAL_CONFIGURATION)
@flags.every_command
@flags.port("port", "The port of HTTP and gRPC together; -1 for none.", default=9090, lowest=-1)
@flags.port("piped-api-port", "The gRPC port for pipeds.", default=9080)
@flags.port("web-api-port", "The gRPC port for the web console.", default=9081)
@flags.port("http-port", "The HTTP port of the console and sign-in.", default=9082)
@flags.port("api-port", "The gRPC port for API keys.", default=9083)
@flags.port("admin-port", "The port of version, health and metrics.", default=9085)
@flags.text("admin-host", "The interface of the admin port; that of --host by default.")
@flags.port("envoy-authz-port", "The port of authorization for Envoy (ext_authz).", default=9086)
@flags.text("static-dir", "A directory with another console to serve instead of the built-in one.")
@flags.text("cache-address", "The Redis (host:port) that all replicas share.")
@flags.text("host", "The interface to listen on; all by default.", default=_ALL_INTERFACES)
@flags.duration("grace-period", "How long running calls may take at shutdown.", default="30s")
@flags.switch("tls", "Use TLS on the gRPC ports and the shared port.")
@flags.text("cert-file", "The certificate for --tls.")
@flags.text("key-file", "The private key for --tls.")
@flags.switch("insecure-cookie", "Allow cookies over plain HTTP.")
@flags.text("encryption-key-file", "The key of sessions and stored secrets.", required=True)
@flags.switch("new-encryption-key", "Accept a key that has replaced the one used before.")
@flags.text("config-file", "The configuration of the control plane.", required=True)
@flags.switch(
    "with-ops", "Run the background jobs here too; false if `pipecd ops` runs.", default=True
)
@flags.port(
    "operator-port", "The port of the operator pages, which need no password.", default=None
)
@flags.text("operator-host", "The interface of the operator pages.", default=_LOOPBACK)
@flags.text(
    "first-project",
    f"The project to create if there is none; also ${_FIRST_PROJECT}.",
)
@flags.text("first-admin", "The username of its administrator.", default="admin")
@flags.text(
    "first-admin-password-file",
    f"The file with the password; also ${_FIRST_ADMIN_PASSWORD} itself.",
)
@flags.switch("enable-grpc-reflection", "Enable gRPC server reflection.")
@flags.switch("traces", "Send traces of this server to the collector as well.")
@flags.strings("trusted-proxies", "The proxies whose X-Forwarded-For is trusted.")
@flags.text("trace-collector-address", "The OTLP collector (gRPC, host:port) for traces of pipeds.")
def server(**options: Any) -> None:
    """Run the control plane."""
    configure(options["log_level"], options["log_encoding"], program="controlplane.server")
    spec_file, key_file = options["config_file"], options["encryption_key_file"]
    spec = read_control_plane(read_file(spec_file, "configuration"), file=spec_file)
    if spec.state_key in _SAMPLE_STATE_KEYS:
        log.warning(
            "stateKey is the text of an example, which everybody knows; "
            "set it to the output of: openssl rand -hex 32"
        )
    encryption_key = _read_encryption_key(key_file)
    tls = None
    if options["tls"]:
        if not options["cert_file"] or not options["key_file"]:
            raise UserMistake("--tls needs --cert-file and --key-file")
        tls = TlsFiles(options["cert_file"], options["key_file"])
        check_server_certificate(tls.cert_file, tls.key_file)
    static_dir = Path(options["static_dir"]) if options["static_dir"] else None
    if static_dir is not None and not (static_dir / "index.html").is_file():
        # The command lines of upstream name a directory that need not exist here.
        log.warning("no console in --static-dir, serving the built-in one", static_dir=static_dir)
        static_dir = None
    settings = ServerSettings(
        spec=spec,
        encryption_key=encryption_key,
        host=options["host"],
        port=options["port"] if options["port"] >= 0 else None,
        ports=Ports(
            options["piped_api_port"],
            options["web_api_port"],
            options["http_port"],
            options["api_port"],
            options["admin_port"],
            options["envoy_authz_port"],
        ),
        insecure_cookie=options["insecure_cookie"],
        tls=tls,
        metrics=options["metrics"],
        grace_period=options["grace_period"],
        with_ops=options["with_ops"],
        reflection=options["enable_grpc_reflection"],
        trace_collector=options["trace_collector_address"],
        traces=options["traces"],
        cache_address=options["cache_address"],
        trusted_proxies=parse_trusted_proxies(options["trusted_proxies"]),
        static_dir=static_dir,
        admin_host=options["admin_host"],
        operator_host=options["operator_host"],
        operator_port=options["operator_port"],
        first_project=_first_project(options),
        encryption_key_file=key_file,
        new_encryption_key=options["new_encryption_key"],
    )

    raise_file_limit()

    async def serve() -> None:
        async with control_plane(settings) as running:
            # The objects loaded so far stay. Without the freeze each full garbage collection would
            # stop the event loop for a tenth of a second.
            gc.collect()
            gc.freeze()
            log.info("control plane ready", port=running.port)
            if running.setup_link:
                log.warning("no project yet, open this link to create it", link=running.setup_link)
            report_ready()
            await asyncio.Event().wait()

    run_until_signal(serve())


@click.command()
@flags.every_command
@flags.port("http-port", "The port of the operator pages, which need no password.", default=9082)
@flags.port("admin-port", "The port of version, health and metrics.", default=9085)
@flags.text(
    "admin-host", "The interface of the admin port; all by default.", default=_ALL_INTERFACES
)
@flags.text(
    "host", "The interface of the operator pages, which need no password.", default=_LOOPBACK
)
@flags.duration("grace-period", "Accepted for compatibility; jobs end at once.", default="15s")
@flags.text("config-file", "The configuration of the control plane.", required=True)
@flags.text("gcloud-path", "Accepted for compatibility; has no effect.")
@flags.text("cache-address", "The Redis (host:port) that all replicas share.")
def ops(**options: Any) -> None:
    """Run the background jobs of a control plane and its operator pages."""
    configure(options["log_level"], options["log_encoding"], program="controlplane.ops")
    spec_file = options["config_file"]
    settings = OpsSettings(
        spec=read_control_plane(read_file(spec_file, "configuration"), file=spec_file),
        host=options["host"],
        port=options["http_port"],
        admin_host=options["admin_host"],
        admin_port=options["admin_port"],
        metrics=options["metrics"],
        cache_address=options["cache_address"],
    )

    async def operate() -> None:
        async with operations(settings) as running:
            log.info("ops ready", port=running.port, admin_port=running.admin_port)
            await asyncio.Event().wait()

    run_until_signal(operate())


@click.command("unseal-secrets")
@flags.shared(log_level="error")
@flags.text("encryption-key-file", "The key of sessions and stored secrets.", required=True)
@flags.text("config-file", "The configuration of the control plane.", required=True)
def unseal_secrets(**options: Any) -> None:
    """Store sealed client secrets in plain text, as upstream's control plane reads them."""
    configure(options["log_level"], options["log_encoding"], program="controlplane.unseal-secrets")
    spec_file = options["config_file"]
    spec = read_control_plane(read_file(spec_file, "configuration"), file=spec_file)
    key = _read_encryption_key(options["encryption_key_file"])

    async def unseal() -> int:
        async with open_stores(spec, "", Telemetry()) as opened:
            stores, bus = opened.stores, opened.bus
            endings = SessionEndings(stores.session_endings, bus)
            projects = ProjectUseCases(stores, bus, Access(stores), endings, key, ())
            return await projects.unseal_secrets()

    projects = counted(asyncio.run(unseal()), "project")
    click.echo(f"unsealed the client secrets of {projects}")


def _first_project(options: Mapping[str, Any]) -> tuple[str, StaticAdmin] | None:
    """The project and administrator of flags or environment that an empty installation gets."""
    project = options["first_project"] or os.environ.get(_FIRST_PROJECT, "")
    if not project:
        return None
    # A project that exists already may have been added when more ids were possible.
    check_id(project)
    password = os.environ.get(_FIRST_ADMIN_PASSWORD, "")
    if path := options["first_admin_password_file"]:
        password = read_password(path, "--first-admin-password-file")
    if not password:
        raise UserMistake(
            f"the first project {project} needs a password for its administrator",
            hint=f"set --first-admin-password-file or {_FIRST_ADMIN_PASSWORD}, or leave both out "
            "and open the link that the server logs",
        )
    return project, StaticAdmin(options["first_admin"], password)


def _read_encryption_key(path: str) -> bytes:
    create = "create one for a new installation with: openssl rand -hex 32"
    try:
        key = Path(path).read_bytes()
    except FileNotFoundError as e:
        raise UserMistake(
            f"there is no file {path} for the encryption key",
            hint=f"check --encryption-key-file, or {create}",
        ) from e
    except IsADirectoryError as e:
        raise UserMistake(
            f"{path} is a directory, the encryption key is a file",
            hint="name the file with --encryption-key-file; a mount of a container makes a "
            "directory of a file that does not exist",
        ) from e
    except OSError as e:
        raise UserMistake(
            f"cannot read the encryption key {path}: {e.strerror}",
            hint="the file must be readable by the user that runs this program",
        ) from e
    lost = f"restore it from your backup, or {create}"
    if not key:
        raise UserMistake(f"the encryption key file {path} is empty", hint=lost)
    if len(key) < KEY_BYTES:
        raise UserMistake(
            f"the encryption key file {path} has {len(key)} bytes and needs at least {KEY_BYTES}",
            hint=lost,
        )
    return key


def read_password(path: str, flag: str) -> str:
    """The first line of a file."""
    lines = read_file(path, "password", flag=flag).decode(errors="replace").splitlines()
    if not lines or not lines[0]:
        raise UserMistake(f"the file {path} has no password in it", hint=f"check {flag}")
    return lines[0]


def read_file(path: str, content: str, *, flag: str = "--config-file") -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as e:
        raise UserMistake(
            f"cannot read the {content} {path}: {e.strerror}", hint=f"check {flag}"
        ) from e
