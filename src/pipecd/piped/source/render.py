# SPDX-License-Identifier: Apache-2.0
"""Puts secrets and attached files into the files of a working copy that ask for them.

Nothing outside of the working copy is read or written, however a path or a link leads there.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from pipecd.config.application.secret import AttachmentSpec, EncryptionSpec
from pipecd.gotemplate.template import render
from pipecd.model.errors import PipecdError, Unavailable, UserMistake
from pipecd.secrets.masking import Masking

Decrypt = Callable[[str], str]


def render_files(
    root: Path,
    application: Path,
    *,
    encryption: EncryptionSpec | None,
    attachment: AttachmentSpec | None,
    decrypt: Decrypt | None,
) -> Mapping[str, str]:
    """Renders the targets of an application in place and returns the secrets by their names."""
    secrets: dict[str, str] = {}
    targets: list[tuple[str, ...]] = []
    if encryption is not None and encryption.encrypted_secrets and decrypt is not None:
        secrets = _decrypted(encryption.encrypted_secrets, decrypt)
        targets.append(encryption.decryption_targets)
    if attachment is not None and attachment.sources:
        targets.append(attachment.targets)
    masking = Masking(secrets.values())
    for names in targets:
        # Built anew for each round: an attached file may have been a target of the one before.
        data: dict[str, Mapping[str, str]] = {}
        if secrets:
            data["encryptedSecrets"] = secrets
        if attachment is not None and attachment.sources:
            data["attachment"] = _attached(root, application, attachment.sources)
        for name in names:
            try:
                _render(root, application, name, data)
            except PipecdError as e:
                # A function of the template may tell what it was given.
                raise UserMistake(masking.hide(e.message), hint=e.hint) from None
    return secrets


def _decrypted(encrypted: Mapping[str, str], decrypt: Decrypt) -> dict[str, str]:
    decrypted: dict[str, str] = {}
    for name, text in encrypted.items():
        try:
            decrypted[name] = decrypt(text)
        except Unavailable:
            # A key service that is away is waited for.
            raise
        except PipecdError as e:
            raise UserMistake(f"failed to decrypt {name} secret ({e.message})", hint=e.hint) from e
    return decrypted


def _attached(root: Path, application: Path, sources: Mapping[str, str]) -> dict[str, str]:
    contents: dict[str, str] = {}
    for name, path in sources.items():
        try:
            contents[name] = _text(inside(root, application / path))
        except (OSError, PipecdError) as e:
            raise UserMistake(
                f"failed to read data source to attach from file {path} ({_why(e)})"
            ) from e
    return contents


def _render(root: Path, application: Path, name: str, data: Mapping[str, object]) -> None:
    try:
        file = inside(root, application / name)
        text = _text(file)
    except (OSError, PipecdError) as e:
        raise UserMistake(f"failed to parse target file {name} ({_why(e)})") from e
    try:
        rendered = render(text, data, name=name)
    except PipecdError as e:
        raise UserMistake(f"failed to render target file {name} ({e.message})") from e
    mode = file.stat().st_mode & 0o777
    # Another working copy may share the file, so it is replaced and not written to.
    file.unlink()
    file.write_bytes(rendered.encode("utf-8", "surrogateescape"))
    file.chmod(mode)


def _text(file: Path) -> str:
    # Bytes that are no text come out again as they went in.
    return file.read_bytes().decode("utf-8", "surrogateescape")


def inside(root: Path, path: Path) -> Path:
    """The real place of a path; one outside of the working copy is refused."""
    real, real_root = path.resolve(), root.resolve()
    if not real.is_relative_to(real_root):
        raise UserMistake("it leads outside of the repository")
    return real


def _why(error: OSError | PipecdError) -> str:
    if isinstance(error, OSError):
        # The full path would show where piped keeps its working copies.
        return error.strerror or type(error).__name__
    return error.message
