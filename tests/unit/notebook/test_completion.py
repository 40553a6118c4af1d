"""Completion as a kernel asks for it: through IPython's own completer, with the whole cell and the cursor in it."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell

import tfos_magic

pytestmark = pytest.mark.slow


class DataFrame:
    """Named and housed like Spark's, which needs a session."""

    def __init__(self, *columns: str) -> None:
        self.columns = list(columns)


class Model:
    """Named and housed like Keras's, which takes seconds to load."""


Model.__module__ = "keras.src.models.model"
DataFrame.__module__ = "pyspark.sql.classic.dataframe"


@pytest.fixture(scope="module")
def shell() -> Iterator[InteractiveShell]:
    made = InteractiveShell()
    made.user_ns.update(train=DataFrame("pixels", "digit"), houses=DataFrame("area", "price"), rate=0.1, net=Model())
    tfos_magic.load_ipython_extension(made)
    yield made
    tfos_magic.unload_ipython_extension(made)
    made.history_manager.end_session()


def offered(shell: InteractiveShell, text: str) -> list[str]:
    """What is offered at the place of the bar in ``text``."""
    before, _, after = text.partition("|")
    with provisionalcompleter():
        return [c.text for c in shell.Completer.completions(before + after, len(before))]


def test_commands_follow_the_line_magic(shell: InteractiveShell) -> None:
    assert offered(shell, "%tfos st|") == ["start", "status", "stop"]


def test_a_command_offers_its_own_options(shell: InteractiveShell) -> None:
    assert "--ps" in offered(shell, "%tfos start --|")
    assert offered(shell, "%tfos logs --t|") == ["--tail"]


def test_the_cell_magic_offers_options_that_are_not_there_yet(shell: InteractiveShell) -> None:
    assert "--strategy" in offered(shell, "%%tfos_train --s|\nx = 1")
    assert "--strategy" not in offered(shell, "%%tfos_train --strategy local --s|\nx = 1")
    assert "--feed" in offered(shell, "%%tfos_train --feed a=train --f|\nx = 1")


def test_choices_follow_their_option(shell: InteractiveShell) -> None:
    assert offered(shell, "%%tfos_train --strategy |\nx = 1") == ["sync", "async", "local"]


def test_dataframes_follow_feed(shell: InteractiveShell) -> None:
    assert offered(shell, "%%tfos_train --feed data=|\nx = 1") == ["train", "houses"]
    assert offered(shell, "%%tfos_train --feed |\nx = 1") == ["train=train", "houses=houses"]


def test_columns_are_those_of_the_dataframes_in_the_cell(shell: InteractiveShell) -> None:
    assert offered(shell, "%%tfos_train --label |\nmodel.fit(houses)") == ["area", "price"]
    assert offered(shell, "%%tfos_train --features area,p|\nmodel.fit(houses)") == ["price"]
    assert offered(shell, "%%tfos_train --null-mask a|\nmodel.fit(houses)") == ["area"]
    assert offered(shell, "%%tfos_train --fill price=0 --fill a|\nmodel.fit(houses)") == ["area="]
    assert offered(shell, "%%tfos_train --label |\nhalf typed (") == ["pixels", "digit", "area", "price"]


def test_names_that_the_cell_makes_follow_output(shell: InteractiveShell) -> None:
    assert offered(shell, "%%tfos_train -o |\nmodel = 1\nseen = model") == ["model", "seen"]


def test_the_body_of_a_cell_is_plain_python(shell: InteractiveShell) -> None:
    assert not [text for text in offered(shell, "%%tfos_train -o model\n--|") if text.startswith("--s")]
    assert "rate" in offered(shell, "%%tfos_train -o model\nra|")
    assert not offered(shell, "%tfoss st|") or "status" not in offered(shell, "%tfoss st|")


def test_nothing_is_offered_after_the_extension_is_unloaded() -> None:
    shell = InteractiveShell()
    before = list(shell.Completer.custom_matchers)
    tfos_magic.load_ipython_extension(shell)
    assert len(shell.Completer.custom_matchers) == len(before) + 1
    tfos_magic.unload_ipython_extension(shell)
    assert shell.Completer.custom_matchers == before
    shell.history_manager.end_session()


def test_unloading_says_that_a_cluster_has_ended(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for had, said in ((True, "The extension was unloaded: its cluster has ended.\n"), (False, "")):
        shell = InteractiveShell()
        tfos_magic.load_ipython_extension(shell)
        runtime = shell.magics_manager.registry["TFOSMagics"].runtime
        monkeypatch.setattr(runtime.shared, "stop", lambda force, had=had: had)
        tfos_magic.unload_ipython_extension(shell)
        assert capsys.readouterr().out == said
        shell.history_manager.end_session()


def test_the_status_names_the_run_that_starts_the_cluster(
    shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    queue = shell.magics_manager.registry["TFOSMagics"].runtime.shared.queue
    for runs, said in (([SimpleNamespace(name="run 1")], "no cluster yet: run 1 is starting it."), ([], "%tfos start")):
        monkeypatch.setattr(queue, "_runs", runs)
        shell.run_line_magic("tfos", "status")
        assert said in capsys.readouterr().out


def test_prediction_offers_models_then_dataframes_then_their_columns(shell: InteractiveShell) -> None:
    assert offered(shell, "%tfos_predict n|") == ["net"]
    assert offered(shell, "%tfos_predict --batch-size 9 net |")[:2] == ["train", "houses"]
    assert offered(shell, "%tfos_predict net houses --features |") == ["area", "price"]
    assert "--argmax" in offered(shell, "%tfos_predict net houses --a|")


def test_runs_are_offered_to_be_compared(shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [SimpleNamespace(name=name) for name in ("run 1", "digits", "run 2")]
    monkeypatch.setattr(shell.magics_manager.registry["TFOSMagics"].runtime.known, "_runs", runs)
    assert offered(shell, "%tfos compare |") == ['"run 1"', "digits", '"run 2"']
    assert offered(shell, "%tfos compare digits d|") == ["digits"]
    assert offered(shell, '%tfos compare "|') == ['run 1"', 'digits"', 'run 2"']
