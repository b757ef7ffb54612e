# SPDX-License-Identifier: Apache-2.0
"""The Makefile creates the virtual environment anew if it cannot be used, and keeps it otherwise."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

MAKEFILE = Path(__file__).parents[2] / "Makefile"

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


# Notes how often it creates an environment, whose pip works.
PYTHON = """\
#!/bin/sh
[ "$1 $2" = "-m venv" ] || exit 0
echo "$@" >> created
mkdir -p .venv/bin
rm -f .venv/bin/python
printf '#!/bin/sh\\n' > .venv/bin/python
chmod +x .venv/bin/python
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A directory with the files that the virtual environment is made from."""
    shutil.copy(MAKEFILE, tmp_path)
    (tmp_path / "requirements").mkdir()
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    for name in ("pyproject.toml", "requirements/build.txt", "requirements/run.txt"):
        (tmp_path / name).touch()
    add_program(tmp_path / "python3", PYTHON)
    return tmp_path


def add_program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def install(project: Path, python: str) -> None:
    """Runs the rule of the virtual environment; pip installs nothing."""
    done = subprocess.run(
        ["make", "--no-print-directory", f"PYTHON={python}", "PIP=true", ".venv/.run"],
        cwd=project, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def interrupt_before_python(environment: Path) -> None:
    """Nothing but a directory was created."""


def interrupt_before_pip(environment: Path) -> None:
    add_program(environment / "bin" / "python", "#!/bin/sh\nexit 1\n")


def remove_its_python(environment: Path) -> None:
    """As an upgrade of the system does, after everything was installed."""
    (environment / ".run").touch()
    (environment / "bin" / "python").symlink_to("/nowhere/python3")


@pytest.mark.parametrize(
    "damage", [interrupt_before_python, interrupt_before_pip, remove_its_python]
)
def test_an_environment_that_cannot_be_used_is_created_anew(
    damage: Callable[[Path], None], project: Path
) -> None:
    damage(project / ".venv")
    install(project, "./python3")
    assert (project / "created").read_text() == "-m venv --clear .venv\n"
    assert (project / ".venv" / ".run").exists()


def test_an_environment_that_works_is_kept(project: Path) -> None:
    add_program(project / ".venv" / "bin" / "python", "#!/bin/sh\n")
    install(project, "./python3")
    assert not (project / "created").exists()


@pytest.mark.slow
def test_an_environment_without_pip_gets_it(project: Path) -> None:
    environment = project / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    install(project, sys.executable)
    pip = [environment / "bin" / "python", "-m", "pip", "--version"]
    assert subprocess.run(pip, capture_output=True, check=False).returncode == 0
