# SPDX-License-Identifier: Apache-2.0
"""`pipectl encrypt`."""

import asyncio
import sys
from pathlib import Path

import click

from pipecd.commandline import flags
from pipecd.model.errors import UserMistake
from pipecd.pipectl.client import Api, attempt, print_json, with_api
from pipecd.proto.service import api_pb2 as pb

_LIMIT_MEGABYTES = 10


@click.command()
@with_api
@flags.text("piped-id", "The piped that will decrypt it.", required=True)
@flags.text("input-file", "The file with the secret; standard input when it is not set.")
@flags.switch("use-base64-encoding", "Encode the secret with base64 before it is encrypted.")
async def encrypt(api: Api, piped_id: str, input_file: str, use_base64_encoding: bool) -> None:
    """Encrypt a secret for a piped."""
    secret = await asyncio.to_thread(_read, input_file)
    request = pb.EncryptRequest(
        piped_id=piped_id, plaintext=secret, base64_encoding=use_base64_encoding
    )
    print_json((await attempt("encrypt", api.Encrypt(request))).ciphertext)


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
