# SPDX-License-Identifier: Apache-2.0
"""A name or a password that is kept in a file, as secrets of Kubernetes are."""

from pathlib import Path

from pipecd.model.errors import UserMistake


def read_secret(path: str, key: str) -> str:
    """The text of the file without the line end that editors leave; `key` names the setting."""
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as e:
        reason = e.strerror if isinstance(e, OSError) else "it is no text"
        raise UserMistake(
            f"cannot read the file {path}: {reason}", hint=f"check {key} of the datastore"
        ) from e
    return text.rstrip("\r\n")
