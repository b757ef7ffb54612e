# SPDX-License-Identifier: Apache-2.0
"""Manifests that stand in files as they are."""

from collections.abc import Sequence
from pathlib import Path

from pipecd.plugins.kubernetes.manifest.manifest import Manifest, read_manifests
from pipecd.sdk import UserMistake

_ENDINGS = frozenset({".yaml", ".yml", ".json"})
_OURS = ".pipe.yaml"


def read_files(directory: Path, names: Sequence[str]) -> list[Manifest]:
    """Reads the manifests of files, in the order of the files."""
    return [manifest for name in names for manifest in _read(directory, name)]


def manifest_files(directory: Path, config_filename: str) -> list[str]:
    """Returns the manifest files of the directory itself; configurations of PipeCD are none."""
    return sorted(
        path.name
        for path in directory.iterdir()
        if path.suffix in _ENDINGS
        and path.name not in (config_filename, _OURS)
        and not path.name.endswith(".pipecd.yaml")
        and path.is_file()
    )


def _read(directory: Path, name: str) -> list[Manifest]:
    path = directory / name
    try:
        text = path.read_text()
    except FileNotFoundError as e:
        raise UserMistake(
            f"the manifest {name} does not exist", hint="correct input.manifests"
        ) from e
    except (OSError, UnicodeDecodeError) as e:
        raise UserMistake(f"the manifest {name} cannot be read: {e}") from e
    return read_manifests(text, file=name)
