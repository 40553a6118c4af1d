"""A node of the cluster: what a program is told of it, and how it runs in a trainer."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from tfos_magic.errors import UsageError
from tfos_magic.tensorflowonspark import TFNode

CHIEFS = ("chief", "master")


@dataclass(frozen=True)
class NodePlan:
    """What all nodes know: the ``(job, task)`` of each rank, hosts by rank, the file system and directory that paths
    are relative to, and whether Spark feeds rows and a port stays reserved."""

    roles: Sequence[tuple[str, int]]
    hosts: Sequence[str]
    default_fs: str
    working_dir: str
    feeds: bool = False
    release_port: bool = True


@dataclass
class TFNodeContext:
    """What the second argument of ``map_fun`` tells of its node."""

    executor_id: int = 0
    job_name: str = ""
    task_index: int = 0
    cluster_spec: Mapping[str, Sequence[str]] = field(default_factory=dict)
    defaultFS: str = "file://"
    working_dir: str = "."
    mgr: Any = None
    tmp_socket: Any = None
    num_workers: int = 1

    @property
    def worker_num(self) -> int:
        """The same as ``executor_id``."""
        return self.executor_id

    def absolute_path(self, path: str) -> str:
        """As :func:`TFNode.hdfs_path`."""
        return TFNode.hdfs_path(self, path)

    def get_data_feed(
        self,
        train_mode: bool = True,
        qname_in: str = "input",
        qname_out: str = "output",
        input_mapping: Mapping[str, str] | None = None,
    ) -> TFNode.DataFeed:
        """As :class:`TFNode.DataFeed`."""
        return TFNode.DataFeed(self.mgr, train_mode, qname_in, qname_out, input_mapping)

    def start_cluster_server(self, num_gpus: int = 1, rdma: bool = False) -> None:
        TFNode.start_cluster_server(self, num_gpus, rdma)

    def export_saved_model(self, sess: Any, export_dir: str, tag_set: str, signatures: Any) -> None:
        TFNode.export_saved_model(sess, export_dir, tag_set, signatures)

    def release_port(self) -> None:
        """As :func:`TFNode.release_port`."""
        TFNode.release_port(self)


def run_node(map_fun: Callable[[Any, Any], Any], tf_args: Any, plan: NodePlan, notice: Callable[[str], None]) -> None:
    """Run a program on this node, in a trainer; ``notice`` is told what is done otherwise than it says."""
    from tfos_magic.feed.trainer.row_feed import leave
    from tfos_magic.tensorflowonspark import install
    from tfos_magic.training import ranks
    from tfos_magic.training.keras_seam.as_written.distribute_strategies import rows_are_own, strategies_taken
    from tfos_magic.training.keras_seam.as_written.keras2 import keras2_understood

    install()
    context = ranks.context()
    manager = TFNode.RowsManager(context.rows if plan.feeds else None)
    with ExitStack() as stack:
        if context.rows is not None:
            stack.callback(leave, context.rows)
        stack.callback(manager.close)
        held = stack.enter_context(socket.socket())
        held.bind((plan.hosts[ranks.rank()], 0))
        node = _context(plan, held, manager)
        stack.enter_context(_variable("TF_CONFIG", _tf_config(node)))
        stack.enter_context(strategies_taken(_alone(plan)))
        keras2_understood(stack, notice)
        if plan.feeds:
            rows_are_own(stack)
        if plan.release_port:
            node.release_port()
        if isinstance(tf_args, list):
            sys.argv = tf_args
        with _gone_named(), _exits_told():
            map_fun(tf_args, node)
        manager.note_unread(notice)


@contextmanager
def _exits_told() -> Iterator[None]:
    """Let a program that exits well end as one that returns, so that what it leaves unread is told."""
    try:
        yield
    except SystemExit as error:
        if error.code not in (None, 0):
            raise


@contextmanager
def _gone_named() -> Iterator[None]:
    try:
        yield
    except AttributeError as error:
        if error.name == "estimator" and getattr(error.obj, "__name__", "") == "tensorflow":
            raise UsageError(
                "TensorFlow has had no tf.estimator since 2.16: write the model in tf.keras and train it by model.fit, "
                "as TensorFlowOnSpark's examples/mnist/keras do with the same cluster and feed."
            ) from error
        raise


def _context(plan: NodePlan, held: socket.socket, manager: TFNode.RowsManager) -> TFNodeContext:
    from tfos_magic.training import ranks

    ports = [int(port) for port in ranks.allgather(int(held.getsockname()[1])).numpy()]
    spec: dict[str, list[str]] = {}
    for (job, _), host, port in zip(plan.roles, plan.hosts, ports, strict=True):
        spec.setdefault(job, []).append(f"{host}:{port}")
    job, task = plan.roles[ranks.rank()]
    workers = sum(len(spec.get(name, ())) for name in (*CHIEFS, "worker"))
    return TFNodeContext(
        ranks.rank(), job, task, spec, plan.default_fs, plan.working_dir, manager, held, num_workers=workers
    )


def _tf_config(node: TFNodeContext) -> str:
    return json.dumps(
        {
            "cluster": dict(node.cluster_spec),
            "task": {"type": node.job_name, "index": node.task_index},
            "environment": "cloud",
        }
    )


def _alone(plan: NodePlan) -> str:
    others = sorted({job for job, _ in plan.roles if job in ("ps", "evaluator")})
    return f"this one has {' and '.join(others)} nodes: leave num_ps and eval_node out." if others else ""


@contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    """Set a variable of the environment in the block."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = before
