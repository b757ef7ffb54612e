# SPDX-License-Identifier: Apache-2.0
"""Every class of attack has a file of tests with a table of attacks, and a row in the documentation."""

import importlib.util
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "security" / "classes.md"

CLASSES = {
    "path traversal": "test_path_traversal.py",
    "links": "test_links.py",
    "archives": "test_archives.py",
    "missing proof of a download": "test_unproven_downloads.py",
    "argument injection": "test_argument_injection.py",
    "template injection": "test_template_injection.py",
    "regular expressions": "test_regular_expressions.py",
    "SSRF": "test_ssrf.py",
    "secrets in output": "test_secrets_in_output.py",
    "secrets in the database": "test_secrets_in_the_database.py",
    "RBAC for every RPC and endpoint": "test_rbac.py",
    "timing": "test_timing.py",
    "tokens": "test_tokens.py",
    "OIDC mix-up": "test_oidc_mix_up.py",
    "sessions": "test_sessions.py",
    "XSS": "test_xss.py",
    "body limits": "test_body_limits.py",
    "webhook signatures": "test_webhook_signatures.py",
    "YAML and decompression bombs": "test_bombs.py",
    "concurrency": "test_concurrency.py",
    "tenancy": "test_tenancy.py",
    "replay": "test_replay.py",
    "local users": "test_local_users.py",
    "confusable remotes": "test_confusable_remotes.py",
    "label scopes": "test_label_scopes.py",
    "API keys": "test_api_keys.py",
}
MIN_ROWS = 12
MIN_ROWS_IN_ALL = 300

ROW = re.compile(r"^\| (?P<name>[^|]+?) \| `(?P<file>test_\w+\.py)` \| (?P<words>.+) \|$")


def load(file: Path) -> ModuleType:
    """Imports a test module under a name of its own, beside the copy that pytest collects."""
    name = f"attack_tables_of_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[name]
    return module


def count_attacks(file: Path) -> int:
    """The rows of all tables of a file; a row of two tables counts once."""
    rows: set[str] = set()
    for name, table in vars(load(file)).items():
        if name.startswith("ATTACKS"):
            assert isinstance(table, Mapping), (
                f"{file.name}: {name} is not a table of named attacks"
            )
            rows |= {str(row) for row in table}
    return len(rows)


def test_there_are_26_classes() -> None:
    assert len(CLASSES) == 26


def test_every_class_has_a_file_and_every_file_a_class() -> None:
    files = {file.name for file in HERE.glob("test_*.py")} - {Path(__file__).name}
    assert files == set(CLASSES.values())


def test_every_class_has_a_table_of_attacks() -> None:
    counts = {name: count_attacks(HERE / file) for name, file in CLASSES.items()}
    sys.stdout.write(f"{counts}\n")
    assert {name for name, count in counts.items() if count < MIN_ROWS} == set()
    assert sum(counts.values()) >= MIN_ROWS_IN_ALL


def test_the_page_lists_every_class_with_its_file() -> None:
    rows = [match for line in PAGE.read_text().splitlines() if (match := ROW.match(line))]
    assert {row["name"]: row["file"] for row in rows} == CLASSES
    assert len(rows) == len(CLASSES)
    # What is attacked and what protects, in words.
    assert all(len(row["words"].split(" | ")) == 2 for row in rows)
