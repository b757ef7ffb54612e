# SPDX-License-Identifier: Apache-2.0
"""The table of what upstream's programs and ours leave behind after each stage."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

BUILD = Path(__file__).parents[2] / "build"


def comparison_table(
    stages: Sequence[str], theirs: Sequence[Mapping[str, Any]], ours: Sequence[Mapping[str, Any]]
) -> str:
    """Returns a row for each stage and resource; what is equal is written once."""
    lines: list[str] = []
    for stage, their, our in zip(stages, theirs, ours, strict=True):
        lines.append(stage)
        for name in sorted({*their, *our}):
            upstream, own = _text(their.get(name)), _text(our.get(name))
            if upstream == own:
                lines.append(f"  same      {name}: {own}")
            else:
                lines += [f"  upstream  {name}: {upstream}", f"  ours      {name}: {own}"]
    return "\n".join(lines) + "\n"


def write_comparison(
    file: str,
    stages: Sequence[str],
    theirs: Sequence[Mapping[str, Any]],
    ours: Sequence[Mapping[str, Any]],
) -> None:
    """Writes the table into the build directory."""
    BUILD.mkdir(exist_ok=True)
    (BUILD / file).write_text(comparison_table(stages, theirs, ours))


def _text(value: Any) -> str:
    return "none" if value is None else json.dumps(value, sort_keys=True, default=str)
