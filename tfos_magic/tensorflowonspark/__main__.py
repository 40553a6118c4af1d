"""Run a program that was written for TensorFlowOnSpark: ``python -m tfos_magic.tensorflowonspark program.py …``.

By ``spark-submit`` give it this file, and the program as its first argument.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path


def main(arguments: list[str]) -> None:
    """Run the program that ``arguments`` begin with, as Python itself would; end the SparkContext that it leaves."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print("usage: python -m tfos_magic.tensorflowonspark program.py [arguments of the program]", file=sys.stderr)
        raise SystemExit(0 if arguments else 2)
    program = Path(arguments[0])
    if not program.is_file():
        raise SystemExit(f"tfos_magic.tensorflowonspark: there is no program {program}")
    here = str(Path(__file__).parent)
    sys.path[:] = [str(program.resolve().parent), *(path for path in sys.path if path not in (here, ""))]
    from tfos_magic.tensorflowonspark import install

    install()
    sys.argv = arguments
    try:
        runpy.run_path(str(program), run_name="__main__")
    finally:
        _stop_spark()


def _stop_spark() -> None:
    from pyspark import SparkContext

    if SparkContext._active_spark_context is not None:
        SparkContext._active_spark_context.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
