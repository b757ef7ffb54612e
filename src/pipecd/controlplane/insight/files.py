# SPDX-License-Identifier: Apache-2.0
"""The encoding of insight files."""

import json
import re
from collections.abc import Callable
from typing import Any, TypeVar

from pipecd.model.errors import PipecdError

T = TypeVar("T")

# Go escapes these characters so that JSON can be embedded in HTML and JavaScript. They occur only
# inside strings, so the whole document can be escaped at once.
_ESCAPED = re.compile("[<>&\u2028\u2029]")


def go_json(value: Any) -> bytes:
    """Encodes JSON as Go does, without spaces, so that both write the same bytes."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return _ESCAPED.sub(lambda match: f"\\u{ord(match[0]):04x}", text).encode()


def decode_file(path: str, content: bytes, decode: Callable[[bytes], T]) -> T:
    """Decodes a file; the error for a damaged file names its path."""
    try:
        return decode(content)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise PipecdError(
            f"the file {path} of the filestore is damaged",
            hint="restore it from a backup, or delete it to collect it again",
        ) from e
