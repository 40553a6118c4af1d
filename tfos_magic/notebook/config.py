"""Defaults of the magics, set with ``%config TFOS.name = value`` or in a Jupyter configuration file."""

from __future__ import annotations

import re
from collections.abc import Sequence

from traitlets import Bool, Enum, Float, Int, Unicode, Union
from traitlets.config import Configurable

from tfos_magic.notebook.views.choice import CHOICES


class TFOS(Configurable):
    """Defaults of %tfos and %%tfos_train. Those tagged ``at_start`` are for clusters that start later."""

    workers = Int(2, min=1, help="Workers of a new cluster (-n).").tag(config=True, at_start=True)
    cores = Int(1, min=1, help="Spark cores for each worker (--cores).").tag(config=True, at_start=True)
    gpus = Int(0, min=0, help="GPUs for each worker (--gpus), by Spark's resource scheduling.").tag(
        config=True, at_start=True
    )
    nccl = Bool(
        False, help="Let GPUs sum by TensorFlow's own collectives, whose ports obey whoever reaches them: files too."
    ).tag(config=True, at_start=True)
    encrypt = Union(
        [Bool(), Enum(["auto"])],
        default_value="auto",
        help="Encrypt what crosses hosts (--encrypt); auto: where the Spark session's settings ask for it.",
    ).tag(config=True, at_start=True)
    ps = Int(0, min=0, help="Parameter servers of a new cluster (--ps).").tag(config=True, at_start=True)
    start_timeout = Float(120.0, help="Seconds a cluster may take to come up (--start-timeout).").tag(
        config=True, at_start=True
    )
    batch_size = Int(32, min=1, help="Rows of one global batch from a DataFrame (--batch-size).").tag(config=True)
    view = Enum(CHOICES, "auto", help="How a run is shown (--view).").tag(config=True)
    log_dir = Unicode("", help="Where curves for TensorBoard go (--log-dir); empty: nowhere that lasts.").tag(
        config=True
    )
    tensorboard = Bool(False, help="Show TensorBoard with each run (--tensorboard).").tag(config=True)
    mlflow = Unicode("", help="Experiment of MLflow that all runs go to (--mlflow); empty: none by itself.").tag(
        config=True
    )
    checkpoint_dir = Unicode(
        "", help="Where checkpoints go (--checkpoint-dir); empty: a temporary folder of the kernel's machine."
    ).tag(config=True)
    keep_checkpoints = Int(3, min=1, help="Checkpoints that stay (--keep).").tag(config=True)
    max_restarts = Int(2, min=0, help="Lost workers that a run survives (--max-restarts); the next loss ends it.").tag(
        config=True
    )
    heartbeat_timeout = Float(20.0, min=3.0, help="Seconds of silence after which a worker is lost.").tag(
        config=True, at_start=True
    )
    idle_timeout = Float(
        0.0, min=0.0, help="Seconds without a run after which a cluster ends (--idle-timeout); 0: it stays."
    ).tag(config=True, at_start=True)
    driver_host = Unicode("", help="Address of this machine that executors reach; empty: detected.").tag(
        config=True, at_start=True
    )
    control_port = Int(0, help="Port of the control socket; 0: any free one.").tag(config=True, at_start=True)
    via = Enum(
        ["", "spark"],
        "",
        help="How messages go (--via); spark: by Spark alone; empty: by that where nothing else works.",
    ).tag(config=True, at_start=True)
    spool_gb = Float(
        None, allow_none=True, min=0.0, help="Disk for fed rows on each worker (--spool-gb); None: half of the free."
    ).tag(config=True, at_start=True)
    spool_dir = Unicode("", help="Directory of the executors for fed rows; empty: Spark's or the system's.").tag(
        config=True, at_start=True
    )


_OPTION = re.compile(r" \((-\S+)\)")
"""How the help of a setting names the option that it is the default of."""


def setting_of(flags: Sequence[str]) -> str:
    """The setting that is the default of the option with these ``flags``; empty where there is none."""
    settings = TFOS.class_traits(config=True).items()
    named = {name: _OPTION.search(trait.help) for name, trait in settings}
    return next((name for name, found in named.items() if found is not None and found[1] in flags), "")
