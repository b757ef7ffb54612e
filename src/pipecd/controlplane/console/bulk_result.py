# SPDX-License-Identifier: Apache-2.0
"""What became of each of several objects that one form was about."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class BulkResult:
    """What became of one application of several: the command, if any, or why it was refused."""

    id: str
    name: str
    command_id: str = ""
    reason: str = ""


def encode_results(results: Iterable[BulkResult]) -> str:
    return json.dumps([asdict(result) for result in results])


def decode_results(text: str) -> list[BulkResult]:
    return [BulkResult(**result) for result in json.loads(text)]
