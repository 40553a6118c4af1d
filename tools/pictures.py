"""Make README's moving pictures: its own cells run in JupyterLab, and the panel under them.

Usage: ``make pictures``. Writes ``widgets/pictures/panel-light.gif`` and ``panel-dark.gif``. Every frame is a picture
of the page; nothing is shortened but the time between two of them.
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

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.browser.jupyter import Lab, Notebook, open_notebook, run_lab  # noqa: E402

PICTURES = ROOT / "widgets" / "pictures"
BLOCK = re.compile(r"<!-- run -->\n```python\n(.*?)```", re.DOTALL)
WARM = "%tfos start -n 2"
"""Between README's cells, so that what is shown begins with training."""
WIDTH, HEIGHT, BARS, COLOURS = 1060, 525, 200, 96
PAUSE, LONGEST, LAST = 0.1, 0.3, 4.0
"""Seconds between two looks at the page, at most between two frames, and of the last frame."""
RUN_SECONDS, MOST_BYTES = 300, 1_000_000


def main() -> int:
    cells = BLOCK.findall((ROOT / "README.md").read_text("utf-8"))[:2]
    with tempfile.TemporaryDirectory(prefix="tfos-pictures-") as folder, run_lab(Path(folder)) as lab:
        path = lab.write("readme", cells[0].strip(), WARM, cells[1].strip())
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            for theme in ("light", "dark"):
                write(PICTURES / f"panel-{theme}.gif", list(frames(browser, lab, path, theme)))
            browser.close()
    return 0


def frames(browser: Browser, lab: Lab, path: Path, theme: str) -> Iterator[tuple[float, bytes]]:
    """Pictures of README's second cell with their times, one for each change, from its start to the run's end."""
    context = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT + BARS})
    notebook = open_notebook(context, lab, path, f"JupyterLab {theme.title()}")
    notebook.start_run()
    cell = notebook.page.locator(".jp-CodeCell").nth(2)
    cell.locator(".tfos-panel").wait_for(timeout=RUN_SECONDS * 1000)
    before, ends = b"", 0.0
    while not ends or time.monotonic() < ends:
        if not ends and cell.locator(".jp-InputPrompt").filter(has_text=re.compile(r"\[\d")).count():
            ends = time.monotonic() + 1.0  # for the card that takes the panel's place
        shot = picture(notebook, cell.evaluate("shown => { shown.scrollIntoView(); return shown.offsetHeight; }"))
        if shot != before:
            yield time.monotonic(), shot
        before = shot
        time.sleep(PAUSE)
    notebook.shut_kernel_down()
    context.close()


def picture(notebook: Notebook, height: int) -> bytes:
    """A picture of what is below the toolbars, as wide as the notebook."""
    assert height, "the cell is not on the page"
    box = notebook.page.locator(".jp-NotebookPanel-notebook").bounding_box()
    assert box is not None
    return notebook.page.screenshot(clip={**box, "height": HEIGHT})


def write(path: Path, shots: list[tuple[float, bytes]]) -> None:
    """Write the frames, with few colours, all from the palette of the last."""
    times = [when for when, _ in shots]
    pictures = [Image.open(io.BytesIO(shot)).convert("RGB") for _, shot in shots]
    palette = pictures[-1].quantize(COLOURS)
    reduced = [each.quantize(palette=palette, dither=Image.Dither.NONE) for each in pictures]
    lasting = [min(after - when, LONGEST) for when, after in pairwise(times)] + [LAST]
    rest = {"append_images": reduced[1:], "duration": [int(seconds * 1000) for seconds in lasting]}
    reduced[0].save(path, save_all=True, loop=0, optimize=True, **rest)
    size = path.stat().st_size
    print(f"{path.relative_to(ROOT)}: {len(shots)} frames of {sum(lasting):.0f} s, {size / 1e3:.0f} kB")
    assert size < MOST_BYTES, "too large for a page that is to show at once"


if __name__ == "__main__":
    sys.exit(main())
