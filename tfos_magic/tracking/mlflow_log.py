"""One run of MLflow for a run, however many workers, logged by the process that asked for it.

It has the run's settings as parameters, metrics by epoch, the cell, how it ended, and the models that came back.
"""

from __future__ import annotations

import importlib.util
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from tfos_magic.cluster.runs.run import Run
from tfos_magic.cluster.runs.state import RunPhase, RunState
from tfos_magic.errors import UsageError
from tfos_magic.storage import without_password

ANSWER_SECONDS = 5.0
END_SECONDS, QUICK_SECONDS = 15.0, 2.0
_LONGEST = 6_000  # characters of a parameter's value
_STATUS = {RunPhase.DONE: "FINISHED", RunPhase.STOPPED: "KILLED"}
_FORBIDDEN = re.compile(r"[^\w\-. :/]")


def active_run() -> Any:
    """MLflow's run that is active in this thread; None where there is none, or no MLflow loaded."""
    mlflow = sys.modules.get("mlflow")
    return mlflow.active_run() if mlflow is not None and hasattr(mlflow, "active_run") else None


def check_installed() -> None:
    """Raise :class:`UsageError` where MLflow is not installed."""
    if importlib.util.find_spec("mlflow") is None:
        raise UsageError("MLflow is not installed here: pip install mlflow-skinny, or tfos_magic's extra mlflow.")


def log_to_mlflow(run: Run, experiment: str = "") -> MlflowLog:
    """Log ``run`` in MLflow's run that is active, else in one of its own in ``experiment``, by default the present one.

    The tracking server is MLflow's own setting. One that does not answer is a notice of the run, which goes on. Raises
    :class:`UsageError` where MLflow is not installed.
    """
    log = MlflowLog(run, experiment)
    run.on_change(log)
    return log


class MlflowLog:
    """Sends what is new of a run, in a thread of its own: a server's time is none of the run's."""

    def __init__(self, run: Run, experiment: str = "") -> None:
        check_installed()
        import mlflow

        active = active_run()
        self._mlflow, self._experiment, self._name = mlflow, experiment, run.name
        self.run_id: str = active.info.run_id if active else ""
        self._is_ours = not active
        self._sent: dict[int, int] = {}
        self._prefix = ""
        self._work: SimpleQueue[tuple[Any, ...] | None] = SimpleQueue()
        self._over = threading.Event()
        self.problem = ""
        self._told = False
        self._work.put((self._begin, dict(run.state.settings), run.request.source))
        threading.Thread(target=self._go_on, name="tfos-mlflow", daemon=True).start()

    def __call__(self, run: Run) -> None:
        """Send what is new; called in a thread, whenever the run has gone on."""
        if rows := self._news(run.state):
            self._work.put((self._log_epochs, rows, _now()))
        if run.done:
            self._work.put((self._end, run.state, dict(run.result)))
            self._work.put(None)
            if not self._over.wait(QUICK_SECONDS if self.problem else END_SECONDS) and not self.problem:
                self.problem = f"has not answered for {END_SECONDS:g} s; what is left is logged when it does"
        if self.problem and not self._told:
            self._told = True
            text = without_password(f"Not logged in MLflow ({self._mlflow.get_tracking_uri()}): {self.problem}.")
            if run.done:
                print(text, file=sys.stderr)
            else:
                run.state.notices.append(text)

    def _news(self, state: RunState) -> list[tuple[int, dict[str, float]]]:
        """The epochs that were not sent yet, each with its step: epochs of all fits count on."""
        rows = []
        for fit, logs in state.fits.items():
            history = list(logs.values())
            begin = min(self._sent.get(fit, 0), len(history))  # a run that begins again takes epochs back
            before = sum(self._sent[other] for other in self._sent if other < fit)
            rows += [(before + epoch, dict(history[epoch])) for epoch in range(begin, len(history))]
            self._sent[fit] = len(history)
        return rows

    def _go_on(self) -> None:
        broken = False
        while (work := self._work.get()) is not None:
            call, *given = work
            if not broken:
                broken = self._fails(partial(call, *given))
            if call == self._end:
                self._fails(partial(self._terminate, *given))
        self._over.set()

    def _fails(self, call: Callable[[], Any]) -> bool:
        """Whether a call fails, of a server, of the way to it, or of a store: no run fails of it."""
        try:
            call()
        except Exception as error:
            line = str(error).strip().partition("\n")[0]
            self.problem = self.problem or f"{type(error).__name__}: {line}"
            return True
        return False

    def _begin(self, settings: dict[str, str], source: str) -> None:
        _refuse_deaf(self._mlflow.get_tracking_uri())
        self._client = self._mlflow.MlflowClient()
        if self._is_ours:
            where = self._experiment_id() if self._experiment else None
            # Which run is active is a matter of each thread: that of the notebook's own stays.
            self.run_id = self._mlflow.start_run(experiment_id=where, run_name=self._name).info.run_id
        known = self._client.get_run(self.run_id).data
        if any(known.params.get(name, value) != value for name, value in settings.items()) or known.metrics:
            self._prefix = f"{self._name}/"  # of several runs in one of MLflow's
        params = [self._mlflow.entities.Param(self._key(n), v[:_LONGEST]) for n, v in settings.items()]
        self._client.log_batch(self.run_id, params=params)
        self._fails(partial(self._client.log_text, self.run_id, source, f"{self._prefix}cell.py"))

    def _experiment_id(self) -> str:
        known = self._client.get_experiment_by_name(self._experiment)
        return str(known.experiment_id if known else self._client.create_experiment(self._experiment))

    def _key(self, name: str) -> str:
        return self._prefix + _FORBIDDEN.sub("_", name)

    def _log_epochs(self, rows: list[tuple[int, dict[str, float]]], at: int) -> None:
        metric = self._mlflow.entities.Metric
        made = [metric(self._key(name), float(v), at, step) for step, row in rows for name, v in row.items()]
        for begin in range(0, len(made), 1000):  # as many as a server takes at once
            self._client.log_batch(self.run_id, metrics=made[begin : begin + 1000])

    def _end(self, state: RunState, values: dict[str, Any]) -> None:
        self._log_epochs(
            [(0, {"seconds": state.ended - state.started, "bytes_sent_per_epoch": state.sent_per_epoch})], _now()
        )
        for name, value in values.items():
            self._fails(partial(self._log_model, name, value))
        if state.error:
            self._client.set_tag(self.run_id, self._key("error"), state.error)

    def _terminate(self, state: RunState, values: dict[str, Any]) -> None:
        if self._is_ours and self.run_id:
            self._client.set_terminated(self.run_id, _STATUS.get(state.phase, "FAILED"))

    def _log_model(self, name: str, value: Any) -> None:
        keras = sys.modules.get("keras")
        with tempfile.TemporaryDirectory(prefix="tfos-mlflow-") as folder:
            path = Path(folder) / f"{name}.keras"
            if keras is not None and isinstance(value, keras.Model):
                value.save(path)
            elif file := getattr(value, "file", ""):  # the weights of a model, where there is no TensorFlow
                path = Path(file)
            else:
                return
            self._client.log_artifact(self.run_id, str(path), f"{self._prefix}models")


def _now() -> int:
    return int(time.time() * 1000)


def _refuse_deaf(uri: str) -> None:
    """Raise for a server that is not there: MLflow itself would try for minutes. Whatever is answered is an answer."""
    if uri.startswith("http"):
        import requests  # MLflow's own way, which takes a user and a password in the address

        requests.get(f"{uri.rstrip('/')}/health", timeout=ANSWER_SECONDS)
