# SPDX-License-Identifier: Apache-2.0
"""The values of a chart: each entry of `helmOptions` sets one key or names one file.

Helm splits `--values`, `--set` and `--set-file` at commas and reads backslashes as escapes, so an
entry could name further keys and files that nobody has validated.
"""

import asyncio
import csv
import io
import os
import re
import tempfile
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

from pipecd.plugins.kubernetes.config import HelmOptions
from pipecd.sdk import UserMistake
from pipecd.sdk.files import contained_path, read_contained
from pipecd.sdk.http import download

_URL_SCHEMES = ("http", "https")
_DOWNLOAD_TIMEOUT = 60.0
_HINT = "write one entry for each key and each file under helmOptions"


def is_url(file: str) -> bool:
    """Reports whether a value file is an address and not a path."""
    return urlsplit(file).scheme.lower() in _URL_SCHEMES


def files_of(options: HelmOptions) -> tuple[str, ...]:
    """Returns the value files as the application names them."""
    return (*options.value_files, *options.set_files.values())


def validate_values(options: HelmOptions) -> None:
    """Refuses an entry that would set a second key."""
    for key in (*options.set_values, *options.set_files):
        if not _is_one_key(key):
            raise UserMistake(f"helmOptions: {key!r} is more than one key", hint=_HINT)
    for key, value in options.set_values.items():
        if not _is_one_value(value):
            raise UserMistake(
                f"helmOptions.setValues: the value of {key} is more than one value",
                hint=r"write \, for a comma, and {a,b} for a list",
            )


def set_flags(options: HelmOptions, paths: Mapping[str, str]) -> Iterator[str]:
    """Yields the flags of the values; `paths` are the local paths of the value files."""
    for key, value in options.set_values.items():
        yield from ("--set", f"{key}={value}")
    for file in options.value_files:
        yield from ("-f", _csv_field(paths[file]))
    for key, file in options.set_files.items():
        yield from ("--set-file", f"{key}={_escaped(paths[file])}")


def validate_files(directory: Path, options: HelmOptions, hosts: Collection[str]) -> None:
    """Refuses files outside of the application's directory, and addresses that are not https."""
    for file in files_of(options):
        if is_url(file):
            address = urlsplit(file)
            if address.scheme.lower() != "https" and address.hostname not in hosts:
                raise UserMistake(
                    f"the value file at {address.hostname} is not read by https",
                    hint="use https, or add the host to rendering.valueFileHosts of the piped",
                )
        else:
            _local_path(directory, file)


@asynccontextmanager
async def local_paths(
    directory: Path, options: HelmOptions, hosts: Collection[str]
) -> AsyncIterator[Mapping[str, str]]:
    """Yields the paths of the value files for Helm in `directory`; downloads remote ones.

    Helm itself would follow an address to any host of the network, and name any scheme.
    """
    with tempfile.TemporaryDirectory(prefix="values-") as temporary:
        paths: dict[str, str] = {}
        for index, file in enumerate(dict.fromkeys(files_of(options))):
            if is_url(file):
                content = await download(file, hosts=hosts, timeout_seconds=_DOWNLOAD_TIMEOUT)
                downloaded = Path(temporary, f"{index}.yaml")
                await asyncio.to_thread(downloaded.write_bytes, content)
                paths[file] = str(downloaded)
            else:
                paths[file] = _local_path(directory, file)
        yield paths


def _local_path(directory: Path, file: str) -> str:
    """Returns the path of a regular file in the directory, relative to it and without links."""
    if urlsplit(file).scheme:
        raise UserMistake(f"{file}: a value file is a path, or an http or https address")
    try:
        path = contained_path(directory, file)
    except UserMistake as e:
        raise UserMistake(
            f"{file} lies outside of the application's directory",
            hint="move the file beside the application's configuration",
        ) from e
    try:
        read_contained(directory, path)
    except UserMistake as e:
        raise UserMistake(f"the value file {file}: {e.message}", hint=_HINT) from e
    # The dot keeps Helm from reading the name as `-`, a list or an address.
    return f"./{os.path.relpath(path, directory.resolve())}"


def _unescaped(text: str, characters: str) -> int:
    """Returns the index of the first of the characters that no backslash escapes, or -1."""
    for match in re.finditer(r"\\.|.", text, re.DOTALL):
        if match[0] in characters:
            return match.start()
    return -1


def _is_one_key(key: str) -> bool:
    # A backslash at the end would escape the `=` after the key.
    backslashes = len(key) - len(key.rstrip("\\"))
    return _unescaped(key, ",=") < 0 and backslashes % 2 == 0


def _is_one_value(value: str) -> bool:
    if value.startswith("{"):
        return _unescaped(value, "}") == len(value) - 1
    return _unescaped(value, ",") < 0


def _escaped(path: str) -> str:
    return re.sub(r"([\\,])", r"\\\1", path)


def _csv_field(path: str) -> str:
    """Returns a path as one field of the list that Helm expects."""
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow([path])
    return text.getvalue()
