"""``%%tfos_map``: the cell's last function or expression, mapped over a DataFrame with :mod:`tfos_magic.frames`."""

from __future__ import annotations

import ast
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from IPython.display import display

import tfos_magic.frames as tfs
from tfos_magic.errors import UsageError
from tfos_magic.frames.source import select
from tfos_magic.frames.task_failures import told_plainly
from tfos_magic.notebook.names import compile_cell
from tfos_magic.notebook.signals import interruptible
from tfos_magic.spark.session import cancel_tag, is_connect, is_dataframe, job_tag

HEAD = 10
_LOOK_SECONDS = 0.25
_END_SECONDS = 10.0


def map_cell(source: str, args: Any, namespace: Mapping[str, Any]) -> Any:
    """Map the cell's function over the DataFrame that ``args`` name, and give the mapped one.

    Raises :class:`UsageError` for a cell or a name that cannot be used, and what the maps raise.
    """
    if not args.frame:
        raise UsageError("%%tfos_map needs the name of a DataFrame: %%tfos_map df -o scored.")
    if args.frame not in namespace:
        raise UsageError(f"the notebook has no name {args.frame!r}: make the DataFrame in an earlier cell.")
    frame = namespace[args.frame]
    function = function_of(source, frame.columns if hasattr(frame, "columns") else (), namespace)
    mapped = tfs.map_rows if args.rows else tfs.map_blocks
    made = mapped(function, frame, trim=args.trim, schema=args.schema, block_rows=args.block_rows)
    return _selected(made, args.select) if args.select else made


def predict_line(args: Any, namespace: Mapping[str, Any]) -> Any:
    """Predict as ``%tfos_predict`` says. Raises :class:`UsageError` for names that cannot be used."""
    if not (args.model and args.frame):
        raise UsageError("%tfos_predict needs a model and a DataFrame: %tfos_predict model df -o scored.")
    if args.frame not in namespace:
        raise UsageError(f"the notebook has no name {args.frame!r}: make the DataFrame in an earlier cell.")
    if args.model not in namespace and not Path(args.model).exists():
        raise UsageError(f"{args.model!r} is neither a model in the notebook nor an existing path.")
    return tfs.predict(
        namespace.get(args.model, args.model),
        namespace[args.frame],
        features=args.features,
        output=args.output or ["prediction"],
        batch_size=args.batch_size,
        argmax=args.argmax,
        classes=args.classes,
        signature=args.signature,
    )


def function_of(source: str, columns: Sequence[str], namespace: Mapping[str, Any]) -> Callable[..., Any]:
    """The function that a cell ends with, or one made of the expression that it ends with.

    In an expression the names of columns are tensors, and in what stands before it; all other names are those of the
    cell and of the notebook, which is left as it was. Raises :class:`UsageError` when the cell ends with neither.
    """
    compile_cell(source, "<cell>")
    statements = ast.parse(source).body
    if not statements:
        raise UsageError("the cell is empty: write a function, or an expression such as {'z': x + 3}.")
    scope = dict(namespace)
    last = statements[-1]
    if isinstance(last, ast.FunctionDef):
        _execute(statements, scope)
        return scope[last.name]
    if not isinstance(last, ast.Expr):
        raise UsageError(
            f"the cell ends with neither a function nor an expression (line {last.lineno}): let it end with a def, or "
            "with outputs by name such as {'z': x + 3}."
        )
    before = statements[:-1]
    if not _names_in(before).isdisjoint(columns):
        return _from_statements([*before, ast.Return(last.value)], columns, scope)
    _execute(before, scope)
    return _from_expression(last.value, columns, scope)


def show(made: Any) -> None:
    """Print the schema as tensors, then display the first ten rows; while Spark computes them a line says how far."""
    print(tfs.explain(made))
    display(_head_of_spark(made) if is_dataframe(made) else made.head(HEAD))


def _execute(statements: list[ast.stmt], scope: dict[str, Any]) -> None:
    exec(compile(ast.Module(statements, []), "<cell>", "exec"), scope)


def _names_in(nodes: Iterable[ast.AST]) -> set[str]:
    return {node.id for root in nodes for node in ast.walk(root) if isinstance(node, ast.Name)}


def _parameters(names: Iterable[str]) -> ast.arguments:
    arguments = [ast.arg(name) for name in names]
    return ast.arguments(posonlyargs=[], args=arguments, kwonlyargs=[], kw_defaults=[], defaults=[])


def _from_statements(body: list[ast.stmt], columns: Sequence[str], scope: dict[str, Any]) -> Callable[..., Any]:
    """The function whose body is the cell, from what it imports to the expression that it ends with."""
    read = _names_in(body)
    made = ast.parse("def cell(): ...").body[0]
    assert isinstance(made, ast.FunctionDef)
    made.args, made.body = _parameters(name for name in columns if name in read), body
    try:
        _execute([ast.fix_missing_locations(made)], scope)
    except SyntaxError as error:  # of what is only allowed outside of functions
        raise UsageError(
            f"a cell whose lines above the last use columns is a function, in which this is not allowed: {error.msg}. "
            "Put what uses no column, such as imports, in an earlier cell."
        ) from None
    function: Callable[..., Any] = scope[made.name]
    return function


def _from_expression(expression: ast.expr, columns: Sequence[str], scope: dict[str, Any]) -> Callable[..., Any]:
    read = _names_in([expression])
    if isinstance(expression, ast.Lambda) or (isinstance(expression, ast.Name) and expression.id not in columns):
        function = eval(compile(ast.Expression(expression), "<cell>", "eval"), scope)
        if callable(function):
            return function
    parameters = [name for name in columns if name in read]
    if not parameters:
        raise UsageError(f"the expression names no column: the DataFrame has {', '.join(columns)}.")
    made = ast.fix_missing_locations(ast.Expression(ast.Lambda(_parameters(parameters), expression)))
    return eval(compile(made, "<cell>", "eval"), scope)


def _selected(frame: Any, names: Sequence[str]) -> Any:
    missing = [name for name in names if name not in frame.columns]
    if missing:
        raise UsageError(f"--select: there is no column {missing[0]!r}, there are {', '.join(frame.columns)}.")
    return select(frame, names) if is_dataframe(frame) else frame[list(dict.fromkeys(names))]


def _head_of_spark(frame: Any) -> Any:
    """The first rows as pandas, computed in a thread, so that an interrupt ends the job and not only the waiting."""
    spark, tag, outcome = frame.sparkSession, f"tfos-map-{uuid4().hex[:12]}", _Outcome()
    work = threading.Thread(target=outcome.fill, args=(spark, tag, frame.limit(HEAD)), name="tfos-map", daemon=True)
    started = time.monotonic()
    with interruptible():
        work.start()
        try:
            while work.is_alive():
                work.join(_LOOK_SECONDS)
                print(f"\r{_progress(spark, tag)}{time.monotonic() - started:.1f} s ", end="", flush=True)
        except KeyboardInterrupt:
            cancel_tag(spark, tag)
            work.join(_END_SECONDS)
            raise
        finally:
            print()
    return outcome.value()


class _Outcome:
    """What a thread gave or raised."""

    def __init__(self) -> None:
        self._value: Any = None
        self._error: BaseException | None = None

    def fill(self, spark: Any, tag: str, frame: Any) -> None:
        try:
            with job_tag(spark, tag):
                if not is_connect(spark):
                    spark.sparkContext.setJobGroup(tag, "tfos_magic: first rows of a map")
                self._value = frame.toPandas()
        except BaseException as error:
            self._error = error

    def value(self) -> Any:
        if self._error is not None:
            with told_plainly():
                raise self._error
        return self._value


def _progress(spark: Any, tag: str) -> str:
    """Tasks of the running stage, where the session tells."""
    if is_connect(spark):
        return "computing, "
    tracker = spark.sparkContext.statusTracker()
    jobs = [job for number in tracker.getJobIdsForGroup(tag) if (job := tracker.getJobInfo(number))]
    stages = [stage for job in jobs for number in job.stageIds if (stage := tracker.getStageInfo(number))]
    done, tasks = sum(stage.numCompletedTasks for stage in stages), sum(stage.numTasks for stage in stages)
    return f"{done} of {tasks} tasks, " if tasks else "computing, "
