"""One training of an estimator: the run that it becomes, and the model that comes of it."""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from tfos_magic.cluster.cluster import TFCluster
from tfos_magic.cluster.map_run import MapRun
from tfos_magic.cluster.runs.request import Observer
from tfos_magic.cluster.runs.run import Run
from tfos_magic.errors import UsageError
from tfos_magic.ml.fit_on_workers import FIT, FitJob
from tfos_magic.ml.models import KerasModel, TrainingSummary
from tfos_magic.ml.params import KerasParams
from tfos_magic.ml.sharing import shared_cluster
from tfos_magic.notebook.views.choice import choose_view
from tfos_magic.values.model_archives import ModelWeights

OUTPUTS = ["model", "history", "facts"]


@dataclass(frozen=True)
class Training:
    """What an ``estimator`` has ``asked`` for, on the DataFrames ``frames``, with checkpoints in ``folder``."""

    estimator: KerasParams
    model_class: type[KerasModel]
    asked: FitJob
    frames: dict[str, Any]
    folder: str = ""

    @property
    def options(self) -> dict[str, Any]:
        """The options of the run, but for its name, its folder, and who watches it."""
        value = self.estimator.value
        names = {"seed": "seed", "weightCol": "weight"}
        return {
            "frames": self.frames,
            "label": value("labelCol"),
            "features": self.estimator.features,
            "batch_size": value("batchSize"),
            "shuffle": value("shuffle"),
            "strategy": value("strategy"),
            "options": value("strategyOptions") or {},
            "resume": value("resume"),
            "outputs": OUTPUTS,
            **{option: value(name) for name, option in names.items() if value(name) not in (None, "")},
        }

    def is_run_like(self, other: Training) -> bool:
        """Whether both can be runs of one map of the cluster."""
        return self.options == other.options and self.workers == other.workers

    @property
    def workers(self) -> int | None:
        """How many workers were asked for."""
        workers: int | None = self.estimator.value("numWorkers")
        return workers

    @property
    def cell(self) -> str:
        """The text that the workers run, which has what is asked for by the name ``item``."""
        validation = "validation" if "validation" in self.frames else "None"
        return FIT.format(validation=validation)

    def cluster(self) -> AbstractContextManager[TFCluster]:
        """The cluster to train on, while it is used."""
        value = self.estimator.value
        servers = 1 if value("strategy") == "async" else 0
        return shared_cluster(self.frames["train"].sparkSession, self.workers, servers, value("keepCluster"))

    def submit(self, cluster: TFCluster) -> Run:
        """Train on all workers, or on as many as were asked for."""
        name, observer = type(self.estimator).__name__, choose_view() if self.estimator.value("verbose") else Observer()
        if self.workers in (None, cluster.size):
            given = {"names": {"item": self.asked}, "checkpoint_dir": self.folder, **self.options}
            return cluster.submit(self.cell, name=name, observer=observer, **given)
        return self.map(cluster, [self], observer).runs[0]

    def map(self, cluster: TFCluster, alike: list[Training], observer: Observer | None = None) -> MapRun:
        """Do several trainings that have these options, side by side, on ``numWorkers`` or one worker each."""
        name, workers = type(self.estimator).__name__, self.estimator.value("numWorkers", 1)
        observer = observer or Observer()
        given = {"checkpoint_dir": [each.folder for each in alike], "observer": observer, **self.options}
        return cluster.map(self.cell, [each.asked for each in alike], workers_per_item=workers, name=name, **given)

    def fitted(self, run: Run, shown: bool = False) -> KerasModel:
        """The model that came of a run that has ended. Raises what ended it; warns of what no view has ``shown``."""
        values, state = run.wait(), run.state
        for notice in [] if shown else state.notices:
            warnings.warn(notice, stacklevel=2)
        model, done = values["model"], max(map(len, values["history"].values()), default=0)
        if done > self.asked.epochs:
            raise UsageError(
                f"The run in {self.folder} has trained {done} epochs, more than the {self.asked.epochs} asked for: set "
                f"epochs={done} or more, or leave resume out."
            )
        if isinstance(model, ModelWeights):
            model = model.read_archive()
        fed = sum(feed.bytes for feed in state.feeds.values())
        made = self.model_class(model, values["facts"], TrainingSummary(values["history"], state.elapsed, fed))
        self.estimator._copyValues(made)
        return made._resetUid(self.estimator.uid)
