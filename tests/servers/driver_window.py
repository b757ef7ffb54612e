# SPDX-License-Identifier: Apache-2.0
"""A window of a browser that is driven by commands of WebDriver, whatever carries them."""

import asyncio
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Any

_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
_WAIT_SECONDS = 30.0


class DriverError(Exception):
    """The browser refused a command."""


class DriverWindow(ABC):
    """A window of a running browser."""

    @abstractmethod
    async def send(self, command: str, **parameters: Any) -> Any:
        """The result of a command, such as `GetTitle`."""

    async def open(self, url: str) -> None:
        await self.send("Navigate", url=url)

    async def sign_in(self, url: str, token: str) -> None:
        """Gives the browser a session; it takes cookies for the site that it shows."""
        await self.open(f"{url}/login?switch=1")
        cookie = {"name": "token", "value": token, "path": "/", "sameSite": "Strict"}
        await self.send("AddCookie", cookie=cookie)

    async def resize(self, width: int, height: int) -> None:
        await self.send("SetWindowRect", width=width, height=height)

    async def run(self, script: str, *args: object) -> Any:
        """What the body of a function returns in the page."""
        return await self.send("ExecuteScript", script=script, args=list(args))

    async def find(self, selector: str) -> str:
        """The first element that matches; waits until there is one."""
        async with asyncio.timeout(_WAIT_SECONDS):
            while True:
                with suppress(DriverError):
                    found = await self.send("FindElement", using="css selector", value=selector)
                    return found[_ELEMENT]
                await asyncio.sleep(0.05)

    async def click(self, selector: str) -> None:
        """Clicks where a user would; fails if something else covers it."""
        async with asyncio.timeout(_WAIT_SECONDS):
            while True:
                try:
                    await self.send("ElementClick", id=await self.find(selector))
                except DriverError as e:
                    # A live update replaced the element between the two commands.
                    if "stale element reference" not in str(e):
                        raise
                else:
                    return

    async def fill(self, selector: str, text: str) -> None:
        element = await self.find(selector)
        await self.send("ElementClear", id=element)
        await self.send("ElementSendKeys", id=element, text=text)

    async def text(self, selector: str) -> str:
        return await self.send("GetElementText", id=await self.find(selector))

    async def wait_for_text(self, selector: str, text: str) -> None:
        """Waits until the element contains the text."""
        shown = ""
        try:
            async with asyncio.timeout(_WAIT_SECONDS):
                while text not in shown:
                    # The element may be replaced by a new one meanwhile.
                    with suppress(DriverError):
                        shown = await self.text(selector)
                    await asyncio.sleep(0.05)
        except TimeoutError as e:
            raise AssertionError(f"{selector} shows {shown!r}, not {text!r}") from e
