# SPDX-License-Identifier: Apache-2.0
"""Renders decrypted secrets and attached files into the target files of a working copy.

No path or link makes it read or write outside of the working copy.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pipecd.config.application import AttachmentSpec, EncryptionSpec
from pipecd.gotemplate.template import has_actions, render
from pipecd.model.errors import PipecdError, Unavailable, UserMistake
from pipecd.program.contained_file import contained_path, read_contained
from pipecd.program.workers import WorkerPool
from pipecd.secrets.masking import Masking

Decrypt = Callable[[str], str]


@dataclass(frozen=True)
class TemplateRenderer:
    """Renders templates in workers; `variables` is the environment that they may read."""

    workers: WorkerPool
    variables: Mapping[str, str] = field(default_factory=dict[str, str])

    async def render(self, text: str, data: Mapping[str, object], name: str) -> str:
        """Renders a template; a text without actions needs no worker."""
        if not has_actions(text):
            return text
        return await self.workers.run(render, text, data, name, self.variables)


async def render_files(
    root: Path,
    application: Path,
    renderer: TemplateRenderer,
    *,
    encryption: EncryptionSpec | None,
    attachment: AttachmentSpec | None,
    decrypt: Decrypt | None,
) -> Mapping[str, str]:
    """Renders the target files of an application in place and returns the secrets by name."""
    secrets: Mapping[str, str] = {}
    targets: list[tuple[str, ...]] = []
    if encryption is not None and encryption.encrypted_secrets and decrypt is not None:
        secrets = await asyncio.to_thread(_decrypted, encryption.encrypted_secrets, decrypt)
        targets.append(encryption.decryption_targets)
    sources: Mapping[str, str] = {}
    if attachment is not None and attachment.sources:
        sources = attachment.sources
        targets.append(attachment.targets)
    masking = Masking(secrets.values())
    for names in targets:
        # Built anew each time: an attached file may be a target of decryption.
        data: dict[str, Mapping[str, str]] = {}
        if secrets:
            data["encryptedSecrets"] = secrets
        if sources:
            data["attachment"] = await asyncio.to_thread(_attached, root, application, sources)
        for name in names:
            try:
                await _render(root, application, name, data, renderer)
            except PipecdError as e:
                # A template function may repeat its arguments in the error.
                raise UserMistake(masking.hide(e.message), hint=e.hint) from None
    return secrets


def _decrypted(encrypted: Mapping[str, str], decrypt: Decrypt) -> dict[str, str]:
    secrets: dict[str, str] = {}
    for name, text in encrypted.items():
        try:
            secrets[name] = decrypt(text)
        except Unavailable:
            # The key service is unavailable; the caller retries.
            raise
        except PipecdError as e:
            message = f"failed to decrypt {name} secret ({e.message})"
            raise UserMistake(message, hint=e.hint) from e
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


async def _render(
    root: Path,
    application: Path,
    name: str,
    data: Mapping[str, object],
    renderer: TemplateRenderer,
) -> None:
    try:
        file = await asyncio.to_thread(contained_path, root, application / name)
        text = _decode(await asyncio.to_thread(read_contained, root, file))
    except PipecdError as e:
        raise UserMistake(f"failed to parse target file {name} ({e.message})") from e
    try:
        rendered = await renderer.render(text, data, name)
    except PipecdError as e:
        raise UserMistake(f"failed to render target file {name} ({e.message})", hint=e.hint) from e
    await asyncio.to_thread(_replace, file, rendered.encode("utf-8", "surrogateescape"))


def _replace(file: Path, content: bytes) -> None:
    """Writes a file anew: it may be a hard link that another working copy shares."""
    mode = file.stat().st_mode & 0o777
    file.unlink()
    file.write_bytes(content)
    file.chmod(mode)


def _decode(content: bytes) -> str:
    # Invalid UTF-8 is written back unchanged.
    return content.decode("utf-8", "surrogateescape")
