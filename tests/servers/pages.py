# SPDX-License-Identifier: Apache-2.0
"""The commands that pages of the guide show, for tests that run them."""

import re
import textwrap
from pathlib import Path

GUIDE = Path(__file__).parents[2] / "docs" / "guide"


def console_blocks(page: str, section: str = "") -> list[str]:
    """The commands of a section of a page, or of its beginning, block by block."""
    text = (GUIDE / page).read_text()
    if section:
        text = text.partition(f"\n## {section}\n")[2]
    text = text.partition("\n## ")[0]
    found = re.findall(r"^( *)```console\n(.*?)^\1```", text, re.MULTILINE | re.DOTALL)
    return [textwrap.dedent(block) for _, block in found]
