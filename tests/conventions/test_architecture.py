# SPDX-License-Identifier: Apache-2.0
"""The architecture page names files that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Paths of the page are those below the package, unless they begin at the top of the repository.
BASES = (ROOT / "src" / "pipecd", ROOT)


def named_paths() -> list[str]:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    named = re.findall(r"`([\w./<>-]+(?:\.py|\.md|\.toml|\.csv|\.proto|/))`", text)
    # A placeholder such as `<name>` must match something.
    return sorted({re.sub(r"<\w+>", "*", path) for path in named})


def test_every_path_of_the_architecture_page_exists() -> None:
    paths = named_paths()
    assert len(paths) > 20
    # A bare file name stands beside a path that is given in full.
    missing = [
        path
        for path in paths
        if "/" in path and not any(list(base.glob(path.rstrip("/"))) for base in BASES)
    ]
    assert missing == []


def test_the_glossary_has_at_most_25_terms_and_is_linked() -> None:
    rows = [
        line
        for line in (ROOT / "docs/glossary.md").read_text().splitlines()
        if line.startswith("| ") and not line.startswith("| Term ")
    ]
    assert 0 < len(rows) <= 25
    for page in ("README.md", "ARCHITECTURE.md"):
        assert "docs/glossary.md" in (ROOT / page).read_text(), page
