# SPDX-License-Identifier: Apache-2.0
"""The commands that pages of the guide show, for tests that run them."""

import re
from pathlib import Path

GUIDE = Path(__file__).parents[2] / "docs" / "guide"


def console_blocks(page: str, section: str) -> list[str]:
    """The commands of a section of a page, block by block."""
    text = (GUIDE / page).read_text().partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return re.findall(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
