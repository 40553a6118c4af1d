"""The GPUs of a node: Spark assigns them, and a program sees its own."""

from __future__ import annotations

import os

AS_STRING, AS_LIST = "string", "list"
MAX_RETRIES = 3


def is_gpu_available() -> bool:
    """Whether Spark has given this node a GPU."""
    return bool(_own())


def get_gpus(num_gpu: int = 1, worker_index: int = -1, format: str = AS_STRING) -> str | list[str]:
    """Give ``num_gpu`` of the GPUs that Spark has given this node. Raises ``RuntimeError`` where it has fewer."""
    own = _own()
    if len(own) < num_gpu:
        raise RuntimeError(
            f"{num_gpu} GPUs are requested and this node has {len(own)}: set spark.executor.resource.gpu.amount and "
            "spark.task.resource.gpu.amount"
        )
    if format not in (AS_STRING, AS_LIST):
        raise ValueError(f"format is {format!r}: give {AS_STRING!r} or {AS_LIST!r}")
    return ",".join(own[:num_gpu]) if format == AS_STRING else own[:num_gpu]


def _own() -> list[str]:
    return [gpu for gpu in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu not in ("", "-1")]
