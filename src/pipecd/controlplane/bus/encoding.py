# SPDX-License-Identifier: Apache-2.0
"""A signal as bytes, for buses between processes."""

import json
from typing import cast

from pipecd.controlplane.bus.signal import Signal, Topic

EVERYTHING = Signal(Topic.EVERYTHING, id="", project="")


def encode_signal(signal: Signal) -> bytes:
    fields = [signal.topic.value, signal.id, signal.project, signal.piped]
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()


def decode_signal(message: bytes) -> Signal:
    """The signal; one that cannot be understood, perhaps of a newer replica, means EVERYTHING."""
    try:
        fields: object = json.loads(message)
    except (ValueError, RecursionError):
        return EVERYTHING
    if not isinstance(fields, list):
        return EVERYTHING
    texts = [field for field in cast("list[object]", fields) if isinstance(field, str)]
    if len(texts) != 4 or texts[0] not in {topic.value for topic in Topic}:
        return EVERYTHING
    return Signal(Topic(texts[0]), id=texts[1], project=texts[2], piped=texts[3])
