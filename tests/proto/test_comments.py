# SPDX-License-Identifier: Apache-2.0
"""Every message, enum, service and RPC says what it is for, in the .proto files and in the stubs."""

import re
from itertools import pairwise
from pathlib import Path

import pytest

PROTO = Path(__file__).parent.parent.parent / "src" / "pipecd" / "proto"
FILES = sorted(PROTO.rglob("*.proto"))
NAMED = re.compile(r"\s*(?:message|enum|service|rpc) \w+")


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(PROTO)))
def test_everything_with_a_name_has_a_comment(file: Path) -> None:
    lines = file.read_text().splitlines()
    bare = [
        line.strip()
        for before, line in pairwise(lines)
        if NAMED.match(line) and not before.strip().startswith("//")
    ]
    assert bare == []


def test_the_stubs_carry_the_comments() -> None:
    stub = (PROTO / "model" / "deployment_pb2.pyi").read_text()
    assert '"""The plan, rollback stages last; empty until it is planned."""' in stub
