"""JupyterLab as a session of Binder has it: started by ``binder/start``, with a base URL of its own, behind a token."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, FrameLocator, Locator, expect

from .conftest import ACTION_MS
from .jupyter import Lab, Notebook, open_notebook, run_lab

USER = "/user/x/"
LOADED_MS = 60_000
STOP_MS = 5_000

BOARDS = """
from IPython.display import display
from tensorboard import notebook, program
from tfos_magic.tensorboard.scalars import ScalarWriter
from tfos_magic.tensorboard.server_process import TensorBoards, embed
with ScalarWriter("logs") as writer:
    for epoch in range(5):
        writer.epoch(epoch, {"loss": 1 / (1 + epoch), "val_loss": 1.2 / (1 + epoch)})
boards = TensorBoards()
served = boards.ensure("logs")
display(embed(served, height=420), raw=True)
own = program.TensorBoard()
own.configure(["tensorboard", "--logdir", "logs", "--port", "0", "--load_fast", "false"])
notebook.display(port=int(own.launch().rstrip("/").rpartition(":")[2]), height=420)  # what %tensorboard ends with
display(embed(served, link=True), raw=True)
"""

PANEL = """
import sys, time; sys.path.insert(0, {folder!r})
from simulated import finish, new_state, progress, tell
from tfos_magic.cluster.runs.state import RunPhase
from tfos_magic.notebook.views.choice import choose_view
state, view = new_state(), choose_view("widget")
state.phase = RunPhase.RUNNING
view.tensorboard(served.url)
view.open(state)
deadline = time.monotonic() + 150
try:
    while time.monotonic() < deadline:
        tell(state, progress(0, 0, 3))
        view.update(state)
        time.sleep(0.05)
except KeyboardInterrupt:
    finish(state, "stopped")
view.close(state)
"""


@pytest.fixture(scope="module")
def session(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    start = [str(project / "binder" / "start")]
    environment = {"JUPYTERHUB_SERVICE_PREFIX": USER}
    with run_lab(tmp_path_factory.mktemp("binder"), start, USER, environment) as running:
        yield running


@pytest.fixture(scope="module")
def notebook(browser: Browser, session: Lab, project: Path) -> Iterator[Notebook]:
    """A notebook that shows TensorBoard in two ways, and then a run that goes on until it is stopped."""
    path = session.write("binder", BOARDS, PANEL.format(folder=str(project / "tests" / "unit" / "notebook" / "views")))
    with browser.new_context(viewport={"width": 1100, "height": 1100}) as context:
        context.set_default_timeout(ACTION_MS)
        opened = open_notebook(context, session, path)
        opened.start_run()
        yield opened
        opened.shut_kernel_down()


@pytest.mark.soak
def test_the_session_is_at_the_users_address(session: Lab) -> None:
    assert re.fullmatch(rf"http://127\.0\.0\.1:\d+{USER.rstrip('/')}", session.url)


@pytest.mark.soak
@pytest.mark.parametrize(
    "frame", ["iframe[title=TensorBoard]", "iframe[id^=tensorboard-frame]"], ids=["ours", "its own"]
)
def test_tensorboard_under_the_cell_comes_through_the_sessions_proxy(
    frame: str, notebook: Notebook, session: Lab, artefacts: Path
) -> None:
    shown = notebook.page.locator(".jp-CodeCell").first.locator(frame)
    shows_a_scalar(shown, session)
    screenshots(notebook, shown, artefacts, "ours" if "title" in frame else "own")


@pytest.mark.soak
def test_a_link_to_tensorboard_leads_through_the_sessions_proxy(notebook: Notebook, session: Lab) -> None:
    link = notebook.output("a").filter(has_text=re.compile("^TensorBoard$"))
    expect(link).to_be_attached(timeout=LOADED_MS)
    with notebook.page.context.expect_page() as opened:
        link.click()
    expect(opened.value).to_have_url(re.compile(rf"^{re.escape(session.url)}/proxy/\d+/[\w-]{{43}}/"))
    expect(opened.value).to_have_title("TensorBoard")
    opened.value.close()


@pytest.mark.soak
def test_tensorboard_in_the_panels_tab_comes_through_the_sessions_proxy(
    notebook: Notebook, session: Lab, artefacts: Path
) -> None:
    panel = notebook.output(".tfos-panel")
    panel.get_by_role("tab", name="TensorBoard").click()
    shows_a_scalar(panel.locator("iframe[title=TensorBoard]"), session)
    screenshots(notebook, panel, artefacts, "panel")


@pytest.mark.soak
def test_the_panels_stop_button_reaches_the_sessions_server(notebook: Notebook) -> None:
    panel = notebook.output(".tfos-panel")
    panel.get_by_role("button", name="Stop", exact=True).click()
    expect(notebook.output(".tfos-card")).to_contain_text("Stopped on 2 workers", timeout=STOP_MS)
    expect(panel).to_have_count(0)


def shows_a_scalar(frame: Locator, session: Lab) -> None:
    expect(frame).to_have_attribute(
        "src", re.compile(rf"^{re.escape(session.url)}/proxy/\d+/([\w-]{{43}}/)?$"), timeout=LOADED_MS
    )
    inside: FrameLocator = frame.content_frame
    expect(inside.get_by_text("epoch_loss").first).to_be_visible(timeout=LOADED_MS)
    expect(inside.get_by_text("validation").first).to_be_visible()


def screenshots(notebook: Notebook, shown: Locator, artefacts: Path, name: str) -> None:
    """A picture of the page with ``shown`` in sight, in each theme."""
    for theme in ("Dark", "Light"):
        notebook.command("apputils:change-theme", {"theme": f"JupyterLab {theme}"})
        notebook.page.wait_for_selector(f"body[data-jp-theme-name='JupyterLab {theme}']", state="attached")
        shown.scroll_into_view_if_needed()
        notebook.page.screenshot(path=artefacts / f"binder-{name}-{theme}.png")
