# SPDX-License-Identifier: Apache-2.0
"""The guide is followed line by line, and what it shows is what happens."""

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
PATIENCE = 30.0
END = "the block has ended"

VARYING = (
    (re.compile(r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d"), "TIME"),
    (re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"), "ID"),
    (re.compile(r"\bat [0-9a-f]{7}\b"), "at COMMIT"),
    (re.compile(r"[\d.]+ s\b"), "SECONDS"),
    (re.compile(r"127\.0\.0\.1:\d+"), "ADDRESS"),
    (re.compile(r"password +\S+"), "PASSWORD"),
)


def alike(line: str) -> str:
    """The line without what differs from one run to the next."""
    for pattern, word in VARYING:
        line = pattern.sub(word, line)
    return line.strip()


def steps(guide: str) -> list[tuple[str, str]]:
    """What a guide has marked: the kind of each step, and its text."""
    return re.findall(r"^<!-- (.+?) -->\n(?:```\w+\n(.*?)^```$)?", guide, re.M | re.S)


@dataclass
class Terminal:
    """A process and what it has printed."""

    process: asyncio.subprocess.Process
    news: asyncio.Event
    lines: list[str] = field(default_factory=list[str])

    async def read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.lines.append(line.decode().rstrip("\n"))
            self.news.set()

    def find(self, pattern: str) -> str | None:
        found = re.search(pattern, "\n".join(self.lines))
        return found[1] if found else None


@asynccontextmanager
async def terminal(*argv: str, home: Path, news: asyncio.Event) -> AsyncGenerator[Terminal, None]:
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
        "HOME": str(home),
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
    opened = Terminal(process, news)
    reading = asyncio.create_task(opened.read())
    try:
        yield opened
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGINT if argv[0] != "bash" else signal.SIGTERM)
        await process.wait()
        await reading


@dataclass
class Walk:
    """A person with the guide, a shell and a quickstart."""

    quickstart: Terminal
    shell: Terminal
    approved: set[str] = field(default_factory=set[str])

    async def until(self, is_so: Callable[[], bool], what: str) -> None:
        """Looks whenever one of the terminals has shown something."""
        try:
            async with asyncio.timeout(PATIENCE):
                while not is_so():
                    await self.quickstart.news.wait()
                    self.quickstart.news.clear()
        except TimeoutError:
            told = ["terminal:", *self.quickstart.lines, "shell:", *self.shell.lines]
            pytest.fail("\n".join([f"{what} did not happen; this did:", *told]))

    @property
    def address(self) -> str:
        return self.quickstart.find(r"running: (http://\S+)") or ""

    async def take(self, kind: str, text: str) -> None:
        match kind:
            case "run":
                await self._run(text)
            case "shown":
                await self._see(text)
            case "a person approves":
                await self._approve()
            case "Ctrl-C":
                self.quickstart.process.send_signal(signal.SIGINT)
                assert await self.quickstart.process.wait() == 0
            case _:
                pytest.fail(f"the guide has a mark that nobody knows: {kind}")

    async def _run(self, block: str) -> None:
        port = self.address.rpartition(":")[2]
        block = block.replace("localhost:8080", f"localhost:{port}")
        before = len(self.shell.lines)
        assert self.shell.process.stdin is not None
        self.shell.process.stdin.write(f"{block}\necho '{END}'\n".encode())
        await self.until(lambda: END in self.shell.lines[before:], block)

    async def _see(self, text: str) -> None:
        def shown() -> set[str]:
            return {*map(alike, self.quickstart.lines), *map(alike, self.shell.lines)}

        for line in filter(None, map(alike, text.splitlines())):
            await self.until(lambda line=line: line in shown(), line)

    async def _approve(self) -> None:
        password = self.quickstart.find(r"password +(\S+)") or ""
        login = {"project": "quickstart", "username": "admin", "password": password}
        own = {"Origin": self.address}
        async with httpx2.AsyncClient(base_url=self.address, follow_redirects=True) as web:
            await web.post("/auth/login/static", data=login, headers=own)
            path, csrf = await self._button(web)
            assert (await web.post(path, data={"csrf": csrf}, headers=own)).status_code == 200
        self.approved.add(path)

    async def _button(self, web: httpx2.AsyncClient) -> tuple[str, str]:
        """Where to press Approve, once some deployment waits for it."""
        button = re.compile(r'action="(/deployments/[^"]+/approve)">.*?name="csrf" value="(\w+)"')
        async with asyncio.timeout(PATIENCE):
            while True:
                listed = (await web.get("/deployments")).text
                for one in dict.fromkeys(re.findall(r'href="(/deployments/[^"/?]+)', listed)):
                    page = (await web.get(one)).text
                    found = button.search(page)
                    if found and found[1] not in self.approved:
                        assert "Waiting for approval by admin" in page
                        return found[1], found[2]
                await asyncio.sleep(0.05)


@asynccontextmanager
async def walking(home: Path) -> AsyncGenerator[Walk, None]:
    """A person who has started the quickstart and opened a shell."""
    (home / ".gitconfig").write_text("[user]\nname = Ann\nemail = ann@example.com\n")
    news = asyncio.Event()
    async with (
        terminal("pipecd", "quickstart", "--port", "0", home=home, news=news) as quickstart,
        terminal("bash", "-e", home=home, news=news) as shell,
    ):
        yield Walk(quickstart, shell)


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_the_guide_is_what_happens(tmp_path: Path) -> None:
    async with walking(tmp_path) as walk:
        for number, (kind, text) in enumerate(steps(GUIDE)):
            await walk.take(kind, text)
            if number == 0:
                # What the first start leaves is named in the guide.
                left = {path.name for path in (tmp_path / ".pipecd" / "quickstart").iterdir()}
                assert left - set(re.findall(r"`([^`\s]+)`", GUIDE)) == set()
        log = [line for line in walk.shell.lines if line.startswith('{"stage_logs"')]
        assert "Good evening" in log[0]
        assert not (tmp_path / ".pipecd" / "quickstart").exists()


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_the_guide_to_events_is_what_happens(tmp_path: Path) -> None:
    async with walking(tmp_path) as walk:
        await walk.until(lambda: "✓ hello" in "\n".join(walk.quickstart.lines), "a deployment")
        for kind, text in steps((GUIDES / "event-watcher.md").read_text()):
            await walk.take(kind, text)


def test_every_command_of_the_guide_is_run_or_started_by_hand() -> None:
    blocks = re.findall(r"^```(\w+)$", GUIDE, re.M)
    marked = [kind for kind, _ in steps(GUIDE) if kind in ("run", "shown")]
    assert len([language for language in blocks if language in ("sh", "text")]) == len(marked)
    assert set(blocks) == {"sh", "text", "console"}
