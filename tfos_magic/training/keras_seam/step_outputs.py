"""What a step prints or writes by TensorFlow: it is of a worker's own rows, which nothing in the output tells."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from tensorflow.python.ops import gen_logging_ops, gen_summary_ops

from tfos_magic.training.keras_seam.seams import wrap
from tfos_magic.training.refusals import note_step_output
from tfos_magic.training.session import Session


def install(stack: ExitStack, session: Session) -> None:
    """Say so where a step does, until ``stack`` closes."""

    def noting(what: str) -> Callable[..., Any]:
        def write(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            if session.step is not None and session.trial is None:
                note_step_output(what, session.reporter)
            return original(*args, **kwargs)

        return write

    wrap(stack, gen_logging_ops, "print_v2", noting("prints (tf.print)"))
    wrap(stack, gen_summary_ops, "write_summary", noting("writes for TensorBoard (tf.summary)"))
