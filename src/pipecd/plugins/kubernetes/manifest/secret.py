# SPDX-License-Identifier: Apache-2.0
"""Makes two Secrets comparable."""

import base64
import binascii
from typing import Any

from pipecd.plugins.kubernetes.manifest.body import Body, map_at


def comparable(body: Body) -> dict[str, Any]:
    """Returns a Secret as the API server keeps it: what was plain text is data."""
    plain = {
        key: base64.b64encode(str(value).encode()).decode()
        for key, value in map_at(body, "stringData").items()
    }
    rest = {key: value for key, value in body.items() if key != "stringData"}
    data = {key: _canonical(value) for key, value in map_at(body, "data").items()}
    return {**rest, "data": {**data, **plain}} if data or plain else rest


def _canonical(value: Any) -> Any:
    """Returns base64 in the one form that the API server writes."""
    try:
        return base64.b64encode(base64.b64decode(value)).decode()
    except (TypeError, ValueError, binascii.Error):
        return value
