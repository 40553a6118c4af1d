"""The options of the magics, parsed with IPython's own tools; several magics share groups of them."""

from __future__ import annotations

import shlex
from argparse import Action
from collections.abc import Callable
from dataclasses import Field, fields
from typing import Any

from IPython.core.error import UsageError as IPythonUsageError
from IPython.core.magic_arguments import MagicHelpFormatter, argument, argument_group, magic_arguments

from tfos_magic.errors import UsageError
from tfos_magic.limits import above_zero, counting, not_negative, positive
from tfos_magic.notebook.config import TFOS, setting_of
from tfos_magic.notebook.texts import extent, names, of_unknown, pair, ranks
from tfos_magic.notebook.views.choice import CHOICES
from tfos_magic.transport.messages import STRATEGIES, StrategyOptions

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def grouped(*decorators: Decorator) -> Decorator:
    """One decorator from several, applied so that help lists them in the order given."""

    def apply(function: Callable[..., Any]) -> Callable[..., Any]:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return apply


help_option = argument("--help", action="store_true", help="Show this help and exit.")

cluster_options = grouped(
    argument_group("workers"),
    argument("-n", "--workers", type=extent, default=None, help="Number of workers, or MIN:MAX, by free slots."),
    argument("--cores", type=positive, default=None, help="Spark cores for each worker."),
    argument("--gpus", type=counting, default=None, help="GPUs for each worker, by Spark's resource scheduling."),
    argument(
        "--encrypt",
        choices=["auto", "on", "off"],
        default=None,
        help="Encrypt what crosses hosts; auto: where the session's settings ask for it.",
    ),
    argument("--via", choices=["spark"], default=None, help="Messages by Spark alone: no executor dials this kernel."),
    argument(
        "--start-timeout",
        type=above_zero,
        default=None,
        help="Seconds the cluster may take to come up.",
    ),
    argument(
        "--idle-timeout",
        type=not_negative,
        default=None,
        help="Seconds without a run after which the cluster ends; 0: it stays.",
    ),
    argument(
        "--spool-gb",
        type=above_zero,
        default=None,
        help="Disk that fed rows may take on each worker; a larger DataFrame is streamed in every epoch.",
    ),
)

servers_option = argument("--ps", type=counting, default=None, help="Parameter servers, for --strategy async.")


def _strategy_option(option: Field[Any]) -> Decorator:
    """The argument for a field of :class:`StrategyOptions`; None where it is not given."""
    flag, owners = f"--{option.name.replace('_', '-')}", " and ".join(option.metadata["strategies"])
    text = f"{owners}: {option.metadata['help']}"
    reads = option.metadata["reads"]
    if reads is bool:
        return argument(flag, action="store_true", default=None, help=text)
    how = {"choices": list(reads)} if isinstance(reads, tuple) else {"type": reads}
    return argument(flag, **how, default=None, help=text)


strategy_options = grouped(
    argument_group("strategy"),
    argument(
        "--strategy",
        choices=STRATEGIES,
        default="sync",
        help="sync: every step is that of one process on the global batch. async: gradients go to parameter servers. "
        "local: each worker trains by itself, and weights are averaged now and then.",
    ),
    *map(_strategy_option, fields(StrategyOptions)),
)

checkpoint_options = grouped(
    argument_group("faults and checkpoints"),
    argument(
        "--checkpoint-dir",
        default=None,
        help="Path or URL for checkpoints; default: a temporary folder, for this run's restarts alone.",
    ),
    argument("--checkpoint-every", type=positive, default=None, help="Steps between checkpoints; default: one epoch."),
    argument("--keep", type=positive, default=None, help="Checkpoints that stay, newest first; default 3."),
    argument("--resume", action="store_true", help="Go on from the newest checkpoint in --checkpoint-dir."),
    argument(
        "--max-restarts", type=counting, default=None, help="Lost workers that a run survives; the next loss ends it."
    ),
)

data_options = grouped(
    argument_group("data and names"),
    argument(
        "--features",
        type=names,
        action="extend",
        default=None,
        help="Columns that are features, with commas; default: all but the label.",
    ),
    argument("--label", default=None, help="Column that is the label; the dataset then yields (features, label)."),
    argument("--weight", default=None, help="Column that weighs rows: (features, label, weight), as fit takes it."),
    argument("--matrix", action="store_true", help="The features side by side in one float32 tensor (rows, width)."),
    argument(
        "--pad",
        action="append",
        default=[],
        metavar="[COL=]VALUE[:LENGTH]",
        help="Fill arrays up to the longest, or to LENGTH (ROWSxCOLUMNS); default: those that vary become ragged "
        "tensors; repeatable.",
    ),
    argument(
        "--fill",
        action="append",
        default=[],
        metavar="[COL=]VALUE",
        help="What nulls become, in COL or wherever VALUE fits; default: they are an error; repeatable.",
    ),
    argument(
        "--null-mask",
        type=names,
        action="extend",
        default=[],
        metavar="COL,...",
        help="Columns that bring COL_mask along, false where a null was; nulls are then 0 or empty without --fill.",
    ),
    argument("--batch-size", type=positive, default=None, help="Rows of a DataFrame in one global batch."),
    argument("--no-shuffle", action="store_true", help="Keep the order of a DataFrame's rows; default: shuffle them."),
    argument(
        "--seed",
        type=counting,
        default=None,
        help="Seed of that order and of the cell's random numbers; default: the notebook's generators go on.",
    ),
    argument(
        "--feed",
        type=pair,
        action="append",
        default=[],
        help="NAME=DF: give DataFrame DF to the cell as NAME; one of pandas or polars, an Arrow table or a dict of "
        "arrays becomes one of Spark; repeatable.",
    ),
    argument("--push", type=names, action="extend", default=[], help="Further names to send, with commas."),
    argument("-o", "--output", type=names, action="extend", default=[], help="Names to bring back, with commas."),
)

view_options = grouped(
    argument_group("what is shown"),
    argument("--log-dir", default=None, help="Directory for TensorBoard scalars; each run makes its own folder in it."),
    argument(
        "--tensorboard",
        action="store_true",
        default=None,
        help="Show TensorBoard in a tab of the panel, or under the cell.",
    ),
    argument("--no-tensorboard", dest="tensorboard", action="store_false", help="Do not show it."),
    argument("--view", choices=CHOICES, default=None, help="How the run is shown."),
    argument(
        "--mlflow",
        nargs="?",
        const="",
        default=None,
        metavar="EXPERIMENT",
        help="Log the run in MLflow, in EXPERIMENT or the present one; by itself where a run of MLflow is active.",
    ),
)

train_options = grouped(
    magic_arguments(),
    data_options,
    cluster_options,
    servers_option,
    strategy_options,
    checkpoint_options,
    view_options,
    argument(
        "--detach",
        nargs="?",
        const="run",
        default=None,
        metavar="NAME",
        help="Return at once; the handle is put in NAME (default: run), and names of -o are read from it.",
    ),
    argument("--dry-run", action="store_true", help="Say what would be sent, fed and started; start nothing."),
    help_option,
)

run_options = grouped(
    magic_arguments(),
    cluster_options,
    argument("-w", "--ranks", type=ranks, action="extend", default=[], help="Workers to run it on, as in 0,2-3."),
    servers_option,
    data_options,
    help_option,
)

map_options = grouped(
    magic_arguments(),
    argument("frame", nargs="?", default=None, help="DataFrame to map, of Spark or pandas."),
    argument("-o", "--output", default=None, help="Name for the mapped DataFrame."),
    argument("--rows", action="store_true", help="The function is of one row, not of a block of rows."),
    argument("--trim", action="store_true", help="Leave the DataFrame's own columns out; rows may change in number."),
    argument("--select", type=names, action="extend", default=[], help="Columns of the result to keep, with commas."),
    argument("--block-rows", type=positive, default=None, help="Rows in a block; default: what suits the cache."),
    argument("--schema", default=None, help="Outputs as DDL in quotes; TensorFlow is not needed then."),
    help_option,
)

predict_options = grouped(
    magic_arguments(),
    argument("model", nargs="?", default=None, help="Keras model of the notebook, or the path of one."),
    argument("frame", nargs="?", default=None, help="DataFrame to predict for, of Spark or pandas."),
    argument("-o", dest="bound", metavar="NAME", default=None, help="Name for the DataFrame with the predictions."),
    argument(
        "--features", type=names, action="extend", default=None, help="Columns to feed, with commas; default: all."
    ),
    argument(
        "--output",
        type=names,
        action="extend",
        default=None,
        help="Names of the new columns, one for each output; default: prediction.",
    ),
    argument("--batch-size", type=positive, default=1024, help="Rows in one call of the model."),
    argument("--argmax", action="store_true", help="Give the index of the greatest value."),
    argument(
        "--classes",
        type=names,
        action="extend",
        default=None,
        help="Names of the classes, with commas: give the name instead.",
    ),
    argument("--signature", default="serving_default", help="Signature of a SavedModel."),
    help_option,
)


def parse(function: Any, line: str) -> Any:
    """Parse ``line`` for a magic. Raises :class:`UsageError` naming the nearest option when one is unknown."""
    try:
        return function.parser.parse_args(shlex.split(line))
    except IPythonUsageError as error:
        raise UsageError(of_unknown(function.parser, str(error))) from None
    except ValueError as error:
        raise UsageError(f"The options cannot be read: {error}.") from None


CELL_MAGICS = ("tfos_train", "tfos_run", "tfos_sweep")


def default_of(action: Action) -> Any:
    """What an option is where it is not given; None, or empty, where that is nothing."""
    option = next((each for each in fields(StrategyOptions) if each.name == action.dest), None)
    if action.default is None and action.nargs != 0 and (setting := setting_of(action.option_strings)):
        return TFOS.class_traits()[setting].default_value
    if option is not None:
        return option.default
    return ",".join(action.default) if isinstance(action.default, list) else action.default


class _WithDefaults(MagicHelpFormatter):
    """Help that tells the default of each option that has one."""

    def _get_help_string(self, action: Action) -> str:
        text, default = action.help or "", default_of(action)
        tells = "default" in text or default in (None, "") or isinstance(default, bool)
        shown = f"{default:g}" if isinstance(default, float) else str(default).replace("%", "%%")
        return text if tells else f"{text.removesuffix('.')}; default: {shown}."


def help_of(function: Any) -> str:
    """The help text of a magic, without the mark-up that IPython puts before it."""
    function.parser.formatter_class = _WithDefaults
    text = str(function.parser.format_help()).removeprefix("::").lstrip("\n")
    name = function.__name__
    return text.replace(f"%{name}", f"%%{name}", 1) if name in CELL_MAGICS else text
