# SPDX-License-Identifier: Apache-2.0
"""Runs the commands of the guides and compares their output with what the guides show."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
import pytest

GUIDES = Path(__file__).parents[2] / "docs" / "guide"
GUIDE = (GUIDES / "quickstart.md").read_text()
BIN = Path(sys.executable).parent
TIMEOUT = 30.0
END = "end of the block"

VARYING = (
    (re.compile(r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d"), "TIME"),
    (re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"), "ID"),
    (re.compile(r"\bat [0-9a-f]{7}\b"), "at COMMIT"),
    (re.compile(r"[\d.]+ s\b"), "SECONDS"),
    (re.compile(r"127\.0\.0\.1:\d+"), "ADDRESS"),
    (re.compile(r"password +\S+"), "PASSWORD"),
)


def normalised(line: str) -> str:
    """The line without the parts that differ between two runs."""
    for pattern, word in VARYING:
        line = pattern.sub(word, line)
    return line.strip()


def steps(guide: str) -> list[tuple[str, str]]:
    """The marked steps of a guide: their kind, and the text of their block."""
    return re.findall(r"^<!-- (.+?) -->\n(?:```\w+\n(.*?)^```$)?", guide, re.M | re.S)


@dataclass
class Terminal:
    """A process and the lines it has printed."""

    process: asyncio.subprocess.Process
    printed: asyncio.Event
    lines: list[str] = field(default_factory=list[str])

    async def read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.lines.append(line.decode().rstrip("\n"))
            self.printed.set()

    def find(self, pattern: str) -> str | None:
        found = re.search(pattern, "\n".join(self.lines))
        return found[1] if found else None


@asynccontextmanager
async def terminal(
    *argv: str, home: Path, printed: asyncio.Event
) -> AsyncGenerator[Terminal, None]:
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
        "HOME": str(home),
        "GIT_CONFIG_NOSYSTEM": "1",
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "NO_COLOR": "1",
        "TERM": "dumb",
        "COLUMNS": "300",
    }
    process = await asyncio.create_subprocess_exec(
        *argv,
        cwd=home,
        env=env,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    opened = Terminal(process, printed)
    reading = asyncio.create_task(opened.read())
    try:
        yield opened
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGINT if argv[0] != "bash" else signal.SIGTERM)
        await process.wait()
        await reading


@dataclass
class Reader:
    """A reader of a guide, with a quickstart and a shell."""

    quickstart: Terminal
    shell: Terminal
    approved: set[str] = field(default_factory=set[str])

    async def wait_until(self, holds: Callable[[], bool], expected: str) -> None:
        """Checks the condition whenever one of the terminals prints a line."""
        try:
            async with asyncio.timeout(TIMEOUT):
                while not holds():
                    await self.quickstart.printed.wait()
                    self.quickstart.printed.clear()
        except TimeoutError:
            output = ["quickstart:", *self.quickstart.lines, "shell:", *self.shell.lines]
            pytest.fail("\n".join([f"expected {expected}", *output]))

    @property
    def address(self) -> str:
        return self.quickstart.find(r"running: (http://[^/\s]+)") or ""

    async def follow(self, kind: str, text: str) -> None:
        match kind:
            case "run":
                await self._run(text)
            case "shown":
                await self._expect(text)
            case "approve":
                await self._approve()
            case "Ctrl-C":
                self.quickstart.process.send_signal(signal.SIGINT)
                assert await self.quickstart.process.wait() == 0
            case _:
                pytest.fail(f"the guide has an unknown step: {kind}")

    async def _run(self, block: str) -> None:
        port = self.address.rpartition(":")[2]
        block = block.replace("localhost:8080", f"localhost:{port}")
        before = len(self.shell.lines)
        assert self.shell.process.stdin is not None
        self.shell.process.stdin.write(f"{block}\necho '{END}'\n".encode())
        await self.wait_until(lambda: END in self.shell.lines[before:], block)

    async def _expect(self, text: str) -> None:
        def shown() -> set[str]:
            return {*map(normalised, self.quickstart.lines), *map(normalised, self.shell.lines)}

        for line in filter(None, map(normalised, text.splitlines())):
            await self.wait_until(lambda line=line: line in shown(), line)

    async def _approve(self) -> None:
        password = self.quickstart.find(r"password +(\S+)") or ""
        login = {"project": "quickstart", "username": "admin", "password": password}
        headers = {"Origin": self.address}
        async with httpx2.AsyncClient(base_url=self.address, follow_redirects=True) as web:
            await web.post("/auth/login/static", data=login, headers=headers)
            path, csrf = await self._approve_form(web)
            assert (await web.post(path, data={"csrf": csrf}, headers=headers)).status_code == 200
        self.approved.add(path)

    async def _approve_form(self, web: httpx2.AsyncClient) -> tuple[str, str]:
        """The path and CSRF token of the form, once a deployment waits for approval."""
        form = re.compile(r'action="(/deployments/[^"]+/approve)">.*?name="csrf" value="(\w+)"')
        async with asyncio.timeout(TIMEOUT):
            while True:
                listed = (await web.get("/deployments")).text
                for one in dict.fromkeys(re.findall(r'href="(/deployments/[^"/?]+)', listed)):
                    page = (await web.get(one)).text
                    found = form.search(page)
                    if found and found[1] not in self.approved:
                        assert "Waiting for approval" in page
                        return found[1], found[2]
                await asyncio.sleep(0.05)


@asynccontextmanager
async def start_reading(home: Path) -> AsyncGenerator[Reader, None]:
    """Starts the quickstart and a shell, of a user who has not told Git a name."""
    printed = asyncio.Event()
    async with (
        terminal("pipecd", "quickstart", "--port", "0", home=home, printed=printed) as quickstart,
        terminal("bash", "-e", home=home, printed=printed) as shell,
    ):
        yield Reader(quickstart, shell)


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_the_quickstart_guide_works(tmp_path: Path) -> None:
    async with start_reading(tmp_path) as reader:
        for number, (kind, text) in enumerate(steps(GUIDE)):
            await reader.follow(kind, text)
            if number == 0:
                # The guide names every file that the first start creates.
                created = {path.name for path in (tmp_path / ".pipecd" / "quickstart").iterdir()}
                assert created - set(re.findall(r"`([^`\s]+)`", GUIDE)) == set()
        log = [line for line in reader.shell.lines if line.startswith('{"stage_logs"')]
        assert "Good evening" in log[0]
        assert not (tmp_path / ".pipecd" / "quickstart").exists()


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_the_event_watcher_guide_works(tmp_path: Path) -> None:
    async with start_reading(tmp_path) as reader:
        await reader.wait_until(
            lambda: "✓ hello" in "\n".join(reader.quickstart.lines), "a deployment"
        )
        for kind, text in steps((GUIDES / "event-watcher.md").read_text()):
            await reader.follow(kind, text)


def test_every_block_of_the_guide_is_a_step_or_for_users_only() -> None:
    blocks = re.findall(r"^```(\w+)$", GUIDE, re.M)
    marked = [kind for kind, _ in steps(GUIDE) if kind in ("run", "shown")]
    assert len([language for language in blocks if language in ("sh", "text")]) == len(marked)
    assert set(blocks) == {"sh", "text", "console"}
