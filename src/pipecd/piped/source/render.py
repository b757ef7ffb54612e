# SPDX-License-Identifier: Apache-2.0
"""Renders decrypted secrets and attached files into the target files of a working copy.

No path or link makes it read or write outside of the working copy.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from pipecd.config.application import AttachmentSpec, EncryptionSpec
from pipecd.gotemplate.template import render
from pipecd.model.errors import PipecdError, Unavailable, UserMistake
from pipecd.program.contained_file import contained_path, read_contained
from pipecd.secrets.masking import Masking

Decrypt = Callable[[str], str]


def render_files(
    root: Path,
    application: Path,
    *,
    encryption: EncryptionSpec | None,
    attachment: AttachmentSpec | None,
    decrypt: Decrypt | None,
    variables: Mapping[str, str],
) -> Mapping[str, str]:
    """Renders the target files of an application in place and returns the secrets by name.

    `variables` is the environment that the functions `env` and `expandenv` see.
    """
    secrets: dict[str, str] = {}
    targets: list[tuple[str, ...]] = []
    if encryption is not None and encryption.encrypted_secrets and decrypt is not None:
        for name, text in encryption.encrypted_secrets.items():
            try:
                secrets[name] = decrypt(text)
            except Unavailable:
                # The key service is unavailable; the caller retries.
                raise
            except PipecdError as e:
                message = f"failed to decrypt {name} secret ({e.message})"
                raise UserMistake(message, hint=e.hint) from e
        targets.append(encryption.decryption_targets)
    if attachment is not None and attachment.sources:
        targets.append(attachment.targets)
    masking = Masking(secrets.values())
    for names in targets:
        # Built anew each time: an attached file may be a target of decryption.
        data: dict[str, Mapping[str, str]] = {}
        if secrets:
            data["encryptedSecrets"] = secrets
        if attachment is not None and attachment.sources:
            data["attachment"] = _attached(root, application, attachment.sources)
        for name in names:
            try:
                _render(root, application, name, data, variables)
            except PipecdError as e:
                # A template function may repeat its arguments in the error.
                raise UserMistake(masking.hide(e.message), hint=e.hint) from None
    return secrets


def _attached(root: Path, application: Path, sources: Mapping[str, str]) -> dict[str, str]:
    contents: dict[str, str] = {}
    for name, path in sources.items():
        try:
            contents[name] = _decode(read_contained(root, application / path))
        except PipecdError as e:
            raise UserMistake(
                f"failed to read data source to attach from file {path} ({e.message})"
            ) from e
    return contents


def _render(
    root: Path,
    application: Path,
    name: str,
    data: Mapping[str, object],
    variables: Mapping[str, str],
) -> None:
    try:
        file = contained_path(root, application / name)
        text = _decode(read_contained(root, file))
    except PipecdError as e:
        raise UserMistake(f"failed to parse target file {name} ({e.message})") from e
    try:
        rendered = render(text, data, name=name, variables=variables)
    except PipecdError as e:
        raise UserMistake(f"failed to render target file {name} ({e.message})") from e
    mode = file.stat().st_mode & 0o777
    # The file may be a hard link that another working copy shares: replace it.
    file.unlink()
    file.write_bytes(rendered.encode("utf-8", "surrogateescape"))
    file.chmod(mode)


def _decode(content: bytes) -> str:
    # Invalid UTF-8 is written back unchanged.
    return content.decode("utf-8", "surrogateescape")
