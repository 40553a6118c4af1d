"""Defaults of the magics, set with ``%config TFOS.name = value`` or in a Jupyter configuration file."""

from __future__ import annotations

from traitlets import Bool, Enum, Float, Int, Unicode
from traitlets.config import Configurable

from tfos_magic.notebook.view import CHOICES


class TFOS(Configurable):
    """Defaults of %tfos and %%tfos_train."""

    workers = Int(2, min=1, help="Workers of a new cluster (-n).").tag(config=True)
    cores = Int(1, min=1, help="Spark cores for each worker (--cores).").tag(config=True)
    gpus = Int(0, min=0, help="GPUs for each worker (--gpus), by Spark's resource scheduling.").tag(config=True)
    start_timeout = Float(120.0, help="Seconds a cluster may take to come up (--start-timeout).").tag(config=True)
    batch_size = Int(32, min=1, help="Rows of one global batch from a DataFrame (--batch-size).").tag(config=True)
    view = Enum(CHOICES, "auto", help="How a run is shown (--view).").tag(config=True)
    log_dir = Unicode("", help="Where scalars for TensorBoard go (--log-dir); empty: nowhere.").tag(config=True)
    tensorboard = Bool(False, help="Show TensorBoard under each run that has a log directory.").tag(config=True)
    driver_host = Unicode("", help="Address of this machine that executors reach; empty: found out.").tag(config=True)
    control_port = Int(0, help="Port of the control socket; 0: any free one.").tag(config=True)
    spool_dir = Unicode("", help="Directory of the executors for fed rows; empty: Spark's or the system's.").tag(
        config=True
    )
