# SPDX-License-Identifier: Apache-2.0
"""Which events are of the same kind: those with one name and one set of labels."""

import hashlib
from collections.abc import Mapping


def event_key(name: str, labels: Mapping[str, str]) -> str:
    """The key under which events of this name and these labels are looked up."""
    told = name + "".join(f"/{key}:{labels[key]}" for key in sorted(labels))
    return hashlib.sha256(told.encode()).hexdigest()
