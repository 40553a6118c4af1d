"""Make README's moving pictures of the panel, from a run of README's own cells in JupyterLab.

Usage: ``.venv/bin/python tools/pictures.py``, or ``make pictures``. Writes ``widgets/pictures/panel-light.gif`` and
``panel-dark.gif``. Frames are pictures of the page; only the time between two of them is shortened.
"""

from __future__ import annotations

import io
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from PIL import Image, ImageOps
from playwright.sync_api import Browser, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "widgets" / "pictures"
BLOCK = re.compile(r"<!-- run -->\n```python\n(.*?)```", re.DOTALL)
SIZE, COLOURS = {"width": 1000, "height": 900}, 64
PAUSE, LONGEST, LAST = 0.2, 0.6, 3.0
"""Seconds between two pictures, at most between two frames, and of the last frame."""
RUN_MS, MOST_BYTES = 180_000, 1_000_000


def main() -> int:
    sys.path.insert(0, str(ROOT))
    from tests.browser.jupyter import run_lab

    cells = BLOCK.findall((ROOT / "README.md").read_text("utf-8"))[:2]
    with tempfile.TemporaryDirectory(prefix="tfos-pictures-") as folder, run_lab(Path(folder)) as lab:
        path = lab.write("readme", *cells)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            for theme in ("light", "dark"):
                write(PICTURES / f"panel-{theme}.gif", list(frames(browser, lab, path, theme)))
            browser.close()
    return 0


def frames(browser: Browser, lab: object, path: Path, theme: str) -> Iterator[tuple[float, bytes]]:
    """Pictures of the panel with their times, one for each change, from its coming to the end of the run."""
    from tests.browser.jupyter import Lab, open_notebook

    assert isinstance(lab, Lab)
    context = browser.new_context(viewport=SIZE)
    notebook = open_notebook(context, lab, path, f"JupyterLab {theme.title()}")
    notebook.start_run()
    panel = notebook.page.locator(".tfos-panel").last
    panel.wait_for(timeout=RUN_MS)
    ended = notebook.page.locator(".jp-CodeCell").nth(1).locator(".jp-InputPrompt").filter(has_text=re.compile(r"\[\d"))
    before, over = b"", False
    while not over:
        over = ended.count() > 0
        time.sleep(PAUSE)
        if (shot := panel.screenshot()) != before:
            yield time.monotonic(), shot
        before = shot
    notebook.shut_kernel_down()
    context.close()


def write(path: Path, shots: list[tuple[float, bytes]]) -> None:
    """Write frames of one size, with few colours, all from one palette."""
    times = [when for when, _ in shots]
    pictures = [Image.open(io.BytesIO(shot)).convert("RGB") for _, shot in shots]
    height = max(picture.height for picture in pictures)
    padded = [
        ImageOps.pad(each, (each.width, height), color=each.getpixel((each.width // 2, 4)), centering=(0, 0))
        for each in pictures
    ]
    palette = padded[-1].quantize(COLOURS)
    reduced = [each.quantize(palette=palette, dither=Image.Dither.NONE) for each in padded]
    lasting = [min(after - when, LONGEST) for when, after in pairwise(times)] + [LAST]
    rest = {"append_images": reduced[1:], "duration": [int(seconds * 1000) for seconds in lasting]}
    reduced[0].save(path, save_all=True, loop=0, optimize=True, **rest)
    size = path.stat().st_size
    print(f"{path.relative_to(ROOT)}: {len(shots)} frames, {size / 1e3:.0f} kB")
    assert size < MOST_BYTES, "too large for a page that is to show at once: take fewer colours"


if __name__ == "__main__":
    sys.exit(main())
