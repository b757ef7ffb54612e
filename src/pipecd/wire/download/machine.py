# SPDX-License-Identifier: Apache-2.0
"""Which machine this is, in the words that download addresses are made of."""

import platform

_ARCHITECTURES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}


def machine() -> tuple[str, str]:
    """The operating system and the architecture of this machine, in the words of Go."""
    name = platform.machine().lower()
    return platform.system().lower(), _ARCHITECTURES.get(name, name)
