# SPDX-License-Identifier: Apache-2.0
"""The Git repository of the sample application."""

from pathlib import Path

from pipecd.config.application import DEFAULT_CONFIG_FILE
from pipecd.model.errors import UserMistake
from pipecd.program.run import run

REPOSITORY_ID = "sample"
BRANCH = "main"
APPLICATION = "hello"

_FILES = {
    "README.md": """# A sample repository

Everything under `hello/` is one application. Change `hello/greeting.txt`, commit, and PipeCD
deploys it by itself:

    echo "Good evening" > hello/greeting.txt
    git commit -am "Greet in the evening"
""",
    f"{APPLICATION}/{DEFAULT_CONFIG_FILE}": """apiVersion: pipecd.dev/v1beta1
kind: Application
spec:
  name: hello
  description: Says what is written in greeting.txt
  labels:
    env: quickstart
  pipeline:
    stages:
      - name: SCRIPT_RUN
        desc: Say the greeting
        with:
          run: |
            echo "Deploying commit $SR_TRIGGERED_COMMIT_HASH of $SR_APPLICATION_NAME"
            cat greeting.txt
""",
    "hello/greeting.txt": "Hello, world!\n",
}


async def make_repository(path: Path) -> None:
    """Makes the repository with its first commit, unless it is there already."""
    if (path / ".git").exists():
        return
    for name, content in _FILES.items():
        file = path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    await _git(path, "init", "--quiet", f"--initial-branch={BRANCH}")
    # The event watcher pushes to the branch that is checked out here, and the files follow.
    await _git(path, "config", "receive.denyCurrentBranch", "updateInstead")
    await _git(path, "add", "--all")
    await _git(path, "commit", "--quiet", "--message", "Say hello")


async def _git(path: Path, *arguments: str) -> None:
    # A person without a Git identity can still take part; theirs wins where it is set.
    identity = ["-c", "user.useConfigOnly=false"]
    if not await _has_identity(path):
        identity += ["-c", "user.name=PipeCD quickstart", "-c", "user.email=quickstart@localhost"]
    try:
        done = await run(["git", *identity, *arguments], cwd=path)
    except FileNotFoundError as e:
        raise UserMistake("the git program is missing", hint="install git and try again") from e
    if done.code:
        raise UserMistake(
            f"cannot make the sample repository: git {arguments[0]} said: {done.last_line}",
            hint=f"remove {path} and try again",
        )


async def _has_identity(path: Path) -> bool:
    try:
        done = await run(["git", "config", "user.email"], cwd=path)
    except FileNotFoundError:
        return False
    return done.code == 0
