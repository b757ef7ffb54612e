# SPDX-License-Identifier: Apache-2.0
"""Counts the modules that run between a push and SUCCESS of its deployment.

Runs `pipecd quickstart` in this process with a profiler, waits until the sample is deployed, then
commits to the sample repository and prints every module of the product in which a function ran
until the deployment completed. Periodic jobs count too, so two runs differ by a few modules.
"""

import argparse
import io
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

SETTLE_SECONDS = 3.0


class Recorder:
    """Collects the code objects that run while it is on."""

    def __init__(self) -> None:
        self.is_on = False
        self.ran: set[CodeType] = set()

    def profile(self, frame: FrameType, event: str, _argument: Any) -> None:
        if self.is_on and event == "call":
            self.ran.add(frame.f_code)

    def modules(self) -> list[str]:
        """The modules of the product that ran, without generated code."""
        names: set[str] = set()
        for code in self.ran:
            _, separator, path = code.co_filename.rpartition("/src/pipecd/")
            # Module-level code runs on import.
            if separator and not path.startswith("proto/") and code.co_name != "<module>":
                names.add(path)
        return sorted(names)


class Output(io.TextIOBase):
    """Replaces standard output and lets a thread wait for a line."""

    def __init__(self) -> None:
        self._text = ""
        self._changed = threading.Condition()

    def isatty(self) -> bool:
        return False

    def write(self, text: str, /) -> int:
        with self._changed:
            self._text += text
            self._changed.notify_all()
        return len(text)

    def wait_for(self, pattern: str, *, count: int = 1, seconds: float = 60) -> None:
        def has_matched() -> bool:
            return len(re.findall(pattern, self._text)) >= count

        with self._changed:
            if not self._changed.wait_for(has_matched, timeout=seconds):
                raise TimeoutError(f"no line with {pattern!r} in:\n{self._text}")


def commit(repository: Path) -> None:
    (repository / "hello/greeting.txt").write_text("Counted")
    git = ["git", "-C", str(repository), "-c", "user.name=t", "-c", "user.email=t@localhost"]
    subprocess.run([*git, "commit", "--quiet", "-am", "Count the modules"], check=True)


def push_once(data: Path, output: Output, recorder: Recorder) -> None:
    try:
        output.wait_for(r"hello at .* success after")
        time.sleep(SETTLE_SECONDS)
        recorder.is_on = True
        commit(data / "sample")
        output.wait_for(r"hello at .* success after", count=2)
        time.sleep(0.2)
    finally:
        recorder.is_on = False
        os.kill(os.getpid(), signal.SIGINT)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--names", action="store_true", help="print the name of every module")
    arguments = parser.parse_args()
    os.environ |= {"NO_COLOR": "1", "TERM": "dumb"}
    recorder, output, stdout = Recorder(), Output(), sys.stdout
    threading.setprofile(recorder.profile)
    sys.setprofile(recorder.profile)
    from pipecd.cli import main as pipecd  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as directory:
        data = Path(directory)
        sys.stdout = output
        threading.Thread(target=push_once, args=(data, output, recorder), daemon=True).start()
        sys.argv = ["pipecd", "quickstart", "--data-dir", str(data), "--port", "0"]
        try:
            pipecd()
        except SystemExit:
            pass
        finally:
            sys.setprofile(None)
            sys.stdout = stdout
    modules = recorder.modules()
    if arguments.names:
        print("\n".join(modules))
    print(f"modules run by a push: {len(modules)}")


if __name__ == "__main__":
    main()
