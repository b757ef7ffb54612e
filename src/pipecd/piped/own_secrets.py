# SPDX-License-Identifier: Apache-2.0
"""Keeps the secrets of piped itself out of the environment of the programs that it starts.

An operator may pass the configuration or the key of piped in an environment variable, for
`--config-data` or for a file that is written at start. The programs of stages inherit the
environment of piped, but none of them needs to act as piped.
"""

import base64
from collections.abc import Iterable, MutableMapping

from pipecd.secrets.masking import Masking


def remove_secrets(environment: MutableMapping[str, str], secrets: Iterable[str]) -> list[str]:
    """Removes the variables that contain a secret, plain or encoded; returns their names."""
    masking = Masking(secrets)
    removed = [
        name
        for name, value in environment.items()
        if any(masking.hide(text) != text for text in (value, _decoded(value)))
    ]
    for name in removed:
        del environment[name]
    return removed


def _decoded(value: str) -> str:
    """Returns a text that is encoded in base64, such as a whole configuration; else nothing."""
    try:
        return base64.b64decode("".join(value.split()), validate=True).decode()
    except ValueError:
        return ""
