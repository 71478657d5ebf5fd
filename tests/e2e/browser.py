"""A headless Chromium, driven over its DevTools protocol: open a page, read it, click, type.

Deliberately small: what a person does in a form is all that the tests need of a browser.
"""

import asyncio
import base64
import itertools
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from vf_pipeline.processes import ManagedProcess

WAIT_S = 60.0
_POLL_S = 0.2
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_FLAGS = (
    "--headless=new",
    "--no-sandbox",  # a test may run as root, where Chromium's sandbox refuses to start
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--no-proxy-server",
    "--remote-debugging-port=0",
    "--window-size=1300,2400",
)


def find_chromium() -> str | None:
    """Return the path of a Chromium on this machine, or None."""
    return next(filter(None, map(shutil.which, _NAMES)), None)


class Page:
    """One page of the browser. What is awaited is bounded by ``WAIT_S``."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._ids = itertools.count(1)

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Return the answer to one DevTools command."""
        number = next(self._ids)
        await self._socket.send_json({"id": number, "method": method, "params": params})
        async with asyncio.timeout(WAIT_S):
            while True:
                # Between the answers come events, which nobody here asked for.
                message = json.loads((await self._socket.receive()).data)
                if message.get("id") == number:
                    assert "error" not in message, (method, message["error"])
                    return dict(message["result"])

    async def read(self, expression: str) -> Any:
        """Return the value of a JavaScript expression."""
        answer = await self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, (expression, answer["exceptionDetails"])
        return answer["result"].get("value")

    async def until(self, expression: str) -> Any:
        """Return the value of an expression as soon as it is true."""
        deadline = asyncio.get_running_loop().time() + WAIT_S
        while not (value := await self.read(expression)):
            if asyncio.get_running_loop().time() > deadline:
                shown = await self.read("document.body.innerText")
                raise AssertionError(
                    f"waited {WAIT_S} s for {expression}; the page shows:\n{shown}"
                )
            await asyncio.sleep(_POLL_S)
        return value

    async def open(self, url: str) -> None:
        """Go to an address."""
        await self.call("Page.navigate", url=url)
        await self.until("document.readyState === 'complete'")

    async def click(self, element: str) -> None:
        """Click the middle of the element that a JavaScript expression gives, once it is there."""
        await self.until(f"!!({element})")
        x, y = await self.read(
            f"(() => {{ const e = {element}; e.scrollIntoView({{block: 'center'}});"
            " const r = e.getBoundingClientRect();"
            " return [r.x + r.width / 2, r.y + r.height / 2] })()"
        )
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            await self.call(
                "Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1
            )

    async def type(self, element: str, text: str) -> None:
        """Replace what a text field holds."""
        await self.click(element)
        await self.read("document.execCommand('selectAll')")
        await self.call("Input.insertText", text=text)

    async def picture(self, path: Path) -> None:
        """Write what the page shows into a PNG file."""
        answer = await self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))


@asynccontextmanager
async def browser(chromium: str, folder: Path) -> AsyncIterator[Page]:
    """Yield an empty page of a browser that keeps its files in ``folder``, and ends with the block.

    Args:
        chromium: path of the program.
        folder: an empty folder.
    """
    command = [chromium, *_FLAGS, f"--user-data-dir={folder / 'profile'}", "about:blank"]
    with ManagedProcess("chromium", command, log_path=folder / "chromium.log"):
        port = await _port(folder / "profile" / "DevToolsActivePort")
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                pages = [page for page in await answer.json() if page["type"] == "page"]
            url = pages[0]["webSocketDebuggerUrl"]
            async with session.ws_connect(url, max_msg_size=1 << 27) as socket:
                yield Page(socket)


async def _port(file: Path) -> int:
    """Return the port that the browser writes down when it listens."""
    async with asyncio.timeout(WAIT_S):
        while not (file.exists() and file.read_text().strip()):
            await asyncio.sleep(_POLL_S)
    return int(file.read_text().split()[0])
