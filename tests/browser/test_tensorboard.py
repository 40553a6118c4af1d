"""TensorBoard inside a notebook, through the Jupyter server and straight."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page, Route, expect

from .conftest import Gates
from .jupyter import Lab, open_notebook

CELL = """
from IPython.display import display
from tfos_magic.tensorboard.scalars import ScalarWriter
from tfos_magic.tensorboard.server_process import TensorBoards, embed
with ScalarWriter({logs!r}) as writer:
    for epoch in range(5):
        writer.epoch(epoch, {{"loss": 1 / (1 + epoch), "val_loss": 1.2 / (1 + epoch)}})
boards = TensorBoards()
display(embed(boards.ensure({logs!r}), height=500), raw=True)
pass_gate("seen")
boards.close()
"""


def no_proxy(page: Page) -> None:
    """Stand in for a Jupyter server without jupyter-server-proxy."""

    def refuse(route: Route) -> None:
        route.fulfill(status=404, body="")

    page.route("**/proxy/**", refuse)


@pytest.mark.soak
@pytest.mark.parametrize("way", ["proxy", "direct"])
def test_tensorboard_loads_under_the_cell_and_says_when_it_has_ended(
    way: str, context: BrowserContext, lab: Lab, gates: Gates, tmp_path: Path, artefacts: Path
) -> None:
    gates.make("seen")
    path = lab.write(f"tensorboard-{way}", gates.code + CELL.format(logs=str(tmp_path / "logs")))
    notebook = open_notebook(context, lab, path)
    if way == "direct":
        no_proxy(notebook.page)
    notebook.start_run()

    frame = notebook.output("iframe[title=TensorBoard]")
    address = (
        rf"^{re.escape(lab.url)}/proxy/\d+/[\w-]{{43}}/$" if way == "proxy" else r"^http://127\.0\.0\.1:\d+/[\w-]{43}/$"
    )
    expect(frame).to_have_attribute("src", re.compile(address))
    inside = frame.content_frame
    expect(inside.get_by_text("epoch_loss").first).to_be_visible(timeout=40_000)
    expect(inside.get_by_text("validation").first).to_be_visible()
    notebook.page.screenshot(path=artefacts / f"tensorboard-{way}.png")

    gates.open("seen")
    notebook.await_run()
    notebook.save()
    notebook.open()
    expect(notebook.output("[data-role=note]")).to_contain_text("This TensorBoard has ended")
    expect(frame).to_be_hidden()
