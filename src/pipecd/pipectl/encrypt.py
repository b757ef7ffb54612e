# SPDX-License-Identifier: Apache-2.0
"""`pipectl encrypt`."""

import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path

import click
import structlog

from pipecd.commandline import flags
from pipecd.config.application import DEFAULT_CONFIG_FILE, config_path
from pipecd.model.errors import UserMistake
from pipecd.pipectl import completion
from pipecd.pipectl.client import Api, attempt, print_json, with_api
from pipecd.proto.model.common_pb2 import ApplicationGitPath
from pipecd.proto.model.piped_pb2 import Piped
from pipecd.proto.service import api_pb2 as pb
from pipecd.secrets.binding import Binding
from pipecd.secrets.encrypter import encrypt_for_piped

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_LIMIT_MEGABYTES = 10


@click.command()
@with_api
@flags.text(
    "piped-id",
    "The piped that will decrypt it; by default that of the application.",
    complete=completion.pipeds,
)
@flags.text("app-id", "The application that the secret is bound to: no other can decrypt it.")
@flags.text("repo-id", "The repository of an application that is not registered yet.")
@flags.text("app-dir", "The directory of that application in the repository.")
@flags.text("config-file-name", "Its configuration file.", default=DEFAULT_CONFIG_FILE)
@flags.text("input-file", "The file with the secret; standard input when it is not set.")
@flags.switch("use-base64-encoding", "Encode the secret with base64 before it is encrypted.")
async def encrypt(api: Api, *, input_file: str, use_base64_encoding: bool, **target: str) -> None:
    """Encrypt a secret for an application or a piped."""
    chosen = _Target(**target)
    secret = await asyncio.to_thread(_read, input_file)
    if not (chosen.app_id or chosen.repo_id):
        request = pb.EncryptRequest(
            piped_id=chosen.piped_id, plaintext=secret, base64_encoding=use_base64_encoding
        )
        print_json((await attempt("encrypt", api.Encrypt(request))).ciphertext)
        return
    if not secret:
        raise UserMistake("the secret is empty")
    piped, binding = await _resolve(api, chosen)
    # Encrypted here, so that the secret does not leave this machine.
    encrypted = encrypt_for_piped(
        piped, secret, binding=binding, base64_encoding=use_base64_encoding
    )
    if encrypted.binding is None:
        log.warning(
            "the secret is not bound: its piped does not decrypt bound secrets, so every "
            "application of the piped can decrypt it",
            piped=piped.id,
        )
    print_json(encrypted.text)


@dataclass(frozen=True)
class _Target:
    """What the flags say about who will decrypt the secret."""

    piped_id: str
    app_id: str
    repo_id: str
    app_dir: str
    config_file_name: str

    def __post_init__(self) -> None:
        if not (self.piped_id or self.app_id):
            raise UserMistake('required flag(s) "piped-id" not set', hint="or set --app-id")
        if self.app_id and self.repo_id:
            raise UserMistake("--app-id and --repo-id cannot be set together")
        if bool(self.repo_id) != bool(self.app_dir):
            raise UserMistake("--repo-id and --app-dir must be set together")


async def _resolve(api: Api, target: _Target) -> tuple[Piped, Binding]:
    """Returns the piped, and the application's file, that a secret is encrypted for."""
    piped_id, application = target.piped_id, None
    if target.app_id:
        get = pb.GetApplicationRequest(application_id=target.app_id)
        application = (await attempt("get application", api.GetApplication(get))).application
        if piped_id and piped_id != application.piped_id:
            raise UserMistake(
                f"application {application.name} belongs to piped {application.piped_id}",
                hint="leave --piped-id out",
            )
        piped_id = application.piped_id
    request = pb.GetPipedRequest(piped_id=piped_id)
    piped = (await attempt("get piped", api.GetPiped(request))).piped
    if application is not None:
        return piped, Binding.of_application(application)
    known = [repository.id for repository in piped.repositories]
    if target.repo_id not in known:
        raise UserMistake(
            f"piped {piped.name} has no repository {target.repo_id}",
            hint=f"use one of: {', '.join(known)}" if known else "",
        )
    file = ApplicationGitPath(path=target.app_dir, config_filename=target.config_file_name)
    return piped, Binding(piped.project_id, target.repo_id, config_path(file))


def _read(path: str) -> str:
    try:
        content = Path(path).read_bytes() if path else sys.stdin.buffer.read()
        if len(content) > _LIMIT_MEGABYTES * 1024 * 1024:
            raise UserMistake(f"input data exceeds set limit {_LIMIT_MEGABYTES} MB")
        return content.decode()
    except OSError as e:
        what = f'file "{path}"' if path else "standard input"
        raise UserMistake(f"failed to read {what}: {e.strerror}") from e
    except UnicodeDecodeError as e:
        raise UserMistake(
            "the secret is not text", hint="encode it first, for example with base64"
        ) from e
