# SPDX-License-Identifier: Apache-2.0
"""The key of events with the same name and labels."""

import hashlib
from collections.abc import Mapping


def event_key(name: str, labels: Mapping[str, str]) -> str:
    """Returns the key by which events of this name and these labels are queried."""
    text = name + "".join(f"/{key}:{labels[key]}" for key in sorted(labels))
    return hashlib.sha256(text.encode()).hexdigest()
