"""A browser without a window, told what to do by its debugging protocol."""

from __future__ import annotations

import asyncio
import base64
import io
import os
import shutil
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import numpy as np
from PIL import Image

PATIENCE = 60.0
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
_FLAGS = (
    *("--headless=new", "--no-sandbox", "--no-first-run", "--use-angle=swiftshader"),
    *("--enable-unsafe-swiftshader", "--ignore-gpu-blocklist", "--window-size=800,600"),
    *("--remote-debugging-port=0", "about:blank"),
)


@contextmanager
def browser(folder: Path):
    """The port of a browser that keeps its files in a folder."""
    command = [str(CHROMIUM), f"--user-data-dir={folder}", *_FLAGS]
    environment = {**os.environ, "HOME": str(folder)}
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    told = folder / "DevToolsActivePort"
    try:
        deadline = time.monotonic() + PATIENCE
        while not (told.exists() and "\n" in told.read_text()):
            assert process.poll() is None
            assert time.monotonic() < deadline, "the browser has not begun"
            time.sleep(0.05)
        yield int(told.read_text().split()[0])
    finally:
        process.terminate()
        process.wait(PATIENCE)


def picture(port: int, url: str, is_enough) -> np.ndarray:
    """The page as red, green and blue, as soon as that is enough."""
    return asyncio.run(_picture(port, url, is_enough))


async def _picture(port, url, is_enough):
    async with aiohttp.ClientSession() as session:
        async with session.get(f"http://127.0.0.1:{port}/json") as answer:
            (page,) = [one for one in await answer.json() if one["type"] == "page"]
        async with session.ws_connect(page["webSocketDebuggerUrl"], max_msg_size=0) as socket:
            count = 0

            async def ask(method, **params):
                nonlocal count
                count += 1
                await socket.send_json({"id": count, "method": method, "params": params})
                while (told := await socket.receive_json()).get("id") != count:
                    pass
                return told.get("result", {})

            await ask("Page.navigate", url=url)
            deadline = time.monotonic() + PATIENCE
            while True:
                shot = await ask("Page.captureScreenshot")
                if "data" not in shot:  # between two pages there is nothing to see
                    await asyncio.sleep(0.1)
                    continue
                image = Image.open(io.BytesIO(base64.b64decode(shot["data"])))
                pixels = np.asarray(image.convert("RGB"))
                if is_enough(pixels):
                    return pixels
                assert time.monotonic() < deadline, "the page does not show what it should"
                await asyncio.sleep(0.2)
