"""The options of ``%%tfos_sweep``: those of what is searched for, and of the workers, data and names of a cell."""

from __future__ import annotations

from IPython.core.magic_arguments import argument, argument_group, magic_arguments

from tfos_magic.limits import counting, positive
from tfos_magic.notebook.options import cluster_options, data_options, grouped, help_option
from tfos_magic.notebook.views.choice import CHOICES
from tfos_magic.sweeps.search import DIRECTIONS, STUDY

sweep_options = grouped(
    magic_arguments(),
    argument_group("search"),
    argument(
        "--trials",
        type=positive,
        default=0,
        help="How many trials; required, but for --sampler grid, whose default is all points.",
    ),
    argument(
        "--metric", default="", help="What is searched for: a metric of the epochs, or a number that the cell sets."
    ),
    argument(
        "--direction",
        choices=DIRECTIONS,
        default="",
        help="Whether larger or smaller is better; default: guessed from the metric's name.",
    ),
    argument(
        "--sampler", default="tpe", help="tpe, random, grid, cmaes, or the name of an Optuna sampler; default: tpe."
    ),
    argument("--pruner", default="none", help="asha, median, none, or the name of an Optuna pruner; default: none."),
    argument(
        "--storage", default=None, help="Where Optuna keeps the study, as sqlite:///study.db; default: in memory."
    ),
    argument("--study", default="", help=f"What the study is called there; default: {STUDY}."),
    argument("--resume", action="store_true", help="Go on with the study until it has --trials in all."),
    argument("--workers-per-trial", type=positive, default=1, help="Workers that train a trial together; default: 1."),
    argument("--fail-fast", action="store_true", help="End the sweep with the first trial that fails."),
    argument(
        "--max-restarts",
        type=counting,
        default=None,
        help="Lost workers that a trial begins again after; the next loss fails it.",
    ),
    data_options,
    cluster_options,
    argument_group("what is shown"),
    argument("--view", choices=CHOICES, default=None, help="How the sweep is shown."),
    help_option,
)
