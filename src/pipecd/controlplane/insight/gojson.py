# SPDX-License-Identifier: Apache-2.0
"""JSON as Go writes it, so that a file is the same whoever wrote it."""

import json
import re
from typing import Any

# Go writes these so that a document can stand inside HTML and JavaScript. In JSON they occur only
# inside of texts, so that a whole document can be treated at once.
_ESCAPED = re.compile("[<>&\u2028\u2029]")


def go_json(value: Any) -> bytes:
    """The document in the fewest bytes, keys in the given order."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", text).encode()
