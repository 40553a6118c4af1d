"""Functions whose calls run on a TensorFlow cluster: cells for programs without magics."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, overload

from tfos_magic.cluster.cluster import TFCluster
from tfos_magic.cluster.runs.execution import Execution
from tfos_magic.cluster.runs.known_runs import NAMES
from tfos_magic.cluster.runs.request import RETURNED, simple_values
from tfos_magic.cluster.runs.run import Run
from tfos_magic.cluster.runs.submit_options import RunOptions, check_names, request_of
from tfos_magic.cluster.shared import SHARED
from tfos_magic.errors import UsageError
from tfos_magic.spark.session import is_dataframe

if TYPE_CHECKING:
    from typing_extensions import Unpack


@overload
def distributed(function: Callable[..., Any], /) -> Distributed: ...


@overload
def distributed(
    *,
    workers: int | None = None,
    servers: int | None = None,
    cluster: TFCluster | None = None,
    **options: Unpack[RunOptions],
) -> Callable[[Callable[..., Any]], Distributed]: ...


def distributed(function: Any = None, /, **options: Any) -> Any:
    """Let a function run on every worker of a TensorFlow cluster, as a cell under ``%%tfos_train`` does.

    ``@distributed(workers=2, label="digit", batch_size=128)`` over ``def train(digits, rate)`` feeds the Spark
    DataFrames among its arguments, each of which becomes this worker's ``tf.data.Dataset``, sends the others by value,
    and gives what the function returns on rank 0: ``model = train(digits, 0.1)``, with the weights of one process.
    ``train.submit(digits, 0.1)`` gives a :class:`~tfos_magic.cluster.runs.run.Run` at once, whose ``returned`` it is.

    It runs on ``cluster``, or on the one that this process has already, of whatever size where ``workers`` and
    ``servers`` are not said; else a cluster of two workers is started on the active Spark session, or on a local one,
    and stays. ``options`` are those of :class:`~tfos_magic.cluster.runs.submit_options.RunOptions`, but for ``names``
    and ``frames``. A call raises what :meth:`Run.wait` raises, and :class:`UsageError` for ``*args``.
    """
    if function is None:
        return functools.partial(Distributed, **options)
    return Distributed(function, **options)


class Distributed:
    """What :func:`distributed` makes of a function. Where it is sent along, to a worker, it is the function itself."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        workers: int | None = None,
        servers: int | None = None,
        cluster: TFCluster | None = None,
        **options: Any,
    ) -> None:
        check_names(options.keys() - RunOptions.__annotations__.keys())
        functools.update_wrapper(self, function)
        self._function, self._cluster, self._options = function, cluster, options
        self._workers, self._servers = workers, servers

    def __repr__(self) -> str:
        return f"<distributed {self._function.__name__}{inspect.signature(self._function)}>"

    def __reduce__(self) -> Any:
        return _itself, (self._function,)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the function returns, run on the workers. An interrupt ends the run."""
        options = self._options_of(args, kwargs)
        if self._cluster is not None:
            return self._cluster.run(self._function, **options)
        return self._shared_run(options, detached=False).execute()[RETURNED]

    def submit(self, *args: Any, **kwargs: Any) -> Run:
        """Begin the run when those before it have ended, and give a handle on it at once."""
        options = self._options_of(args, kwargs)
        if self._cluster is not None:
            return self._cluster.submit(self._function, **options)
        return self._shared_run(options, detached=True).start()

    def _options_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        given = self._named(args, kwargs)
        frames = {name: value for name, value in given.items() if is_dataframe(value)}
        names = {name: value for name, value in given.items() if name not in frames}
        self._refuse_unfed(given, frames)
        return {"name": self._function.__name__, **self._options, "names": names, "frames": frames}

    def _refuse_unfed(self, given: dict[str, Any], frames: dict[str, Any]) -> None:
        """Refuse options of fed DataFrames where there is a table of this process among the arguments, and no other."""
        options = [name for name in ("label", "features", "weight", "matrix") if self._options.get(name)]
        tables = [name for name, value in given.items() if type(value).__name__ == "DataFrame"]
        if options and tables and not frames:
            raise UsageError(
                f"{self._function.__name__} has {', '.join(options)}, which tell how a Spark DataFrame is fed, and "
                f"{tables[0]!r} is a table of this process, which is sent as it is: pass "
                f"spark.createDataFrame({tables[0]})."
            )

    def _shared_run(self, options: dict[str, Any], *, detached: bool) -> Run:
        observer = options.pop("observer", None)
        name = NAMES.give(options.pop("name"))
        request = request_of(self._function, detached=detached, name=name, **options)
        return Run(Execution(request, SHARED.size_for(self._workers, 2), self._connect), SHARED.queue, observer)

    def _named(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        signature = inspect.signature(self._function)
        given = dict(signature.bind(*args, **kwargs).arguments)
        named = [each for each in signature.parameters.values() if each.kind is not each.POSITIONAL_ONLY]
        for name, value in simple_values({each.name: each.default for each in named}).items():
            given.setdefault(name, value)  # by which runs are told apart
        for parameter in signature.parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD:
                given.update(given.pop(parameter.name, {}))
            elif parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY) and parameter.name in given:
                raise UsageError(
                    f"{self._function.__name__} takes {parameter.name!r} by its place alone, and its arguments travel "
                    "by their names: let it be an ordinary parameter."
                )
        return given

    def _connect(self, run_id: str) -> TFCluster:
        make = functools.partial(TFCluster, workers=self._workers or 2, servers=self._servers or 0)
        return SHARED.ensure(make, workers=self._workers, servers=self._servers, run_id=run_id, wait_for_trainers=False)


def _itself(function: Callable[..., Any]) -> Callable[..., Any]:
    return function
