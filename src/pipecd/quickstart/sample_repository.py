# SPDX-License-Identifier: Apache-2.0
"""The Git repository of the sample application."""

from pathlib import Path

from pipecd.config.application import DEFAULT_CONFIG_FILE
from pipecd.model.errors import UserMistake
from pipecd.program.run import run

REPOSITORY_ID = "sample"
BRANCH = "main"
APPLICATION = "hello"
_GIT_IDENTITY = ("-c", "user.name=PipeCD quickstart", "-c", "user.email=quickstart@localhost")

_FILES = {
    "README.md": """# Sample repository

The directory `hello/` is one application. Change `hello/greeting.txt` and commit; PipeCD deploys
the commit:

    echo "Good evening" > hello/greeting.txt
    git commit -am "Greet in the evening"
""",
    f"{APPLICATION}/{DEFAULT_CONFIG_FILE}": """apiVersion: pipecd.dev/v1beta1
kind: Application
spec:
  name: hello
  description: Prints greeting.txt
  labels:
    env: quickstart
  pipeline:
    stages:
      - name: SCRIPT_RUN
        desc: Print the greeting
        with:
          run: |
            echo "Deploying commit $SR_TRIGGERED_COMMIT_HASH of $SR_APPLICATION_NAME"
            cat greeting.txt
""",
    "hello/greeting.txt": "Hello, world!\n",
}


async def create_repository(path: Path) -> None:
    """Creates the repository with its first commit, unless it exists."""
    if (path / ".git").exists():
        return
    for name, content in _FILES.items():
        file = path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    await _git(path, "init", "--quiet", f"--initial-branch={BRANCH}")
    # The event watcher pushes to this branch, and Git updates the files that are checked out.
    await _git(path, "config", "receive.denyCurrentBranch", "updateInstead")
    await _git(path, "add", "--all")
    await _git(path, "commit", "--quiet", "--message", "Say hello")


async def _git(path: Path, *arguments: str) -> None:
    # Users without a Git identity can run the quickstart as well.
    has_identity = (await run(["git", "config", "user.email"], cwd=path)).code == 0
    identity = () if has_identity else _GIT_IDENTITY
    done = await run(["git", "-c", "user.useConfigOnly=false", *identity, *arguments], cwd=path)
    if done.code:
        raise UserMistake(
            f"cannot create the sample repository: git {arguments[0]} failed: {done.last_line}",
            hint=f"remove {path} and retry",
        )
