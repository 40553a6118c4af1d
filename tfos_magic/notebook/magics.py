"""The magics. They parse and delegate; what they do is in the rooms below."""

from __future__ import annotations

import dataclasses
import inspect
import os
from typing import Any

from IPython.core.magic import Magics, line_cell_magic, line_magic, magics_class
from IPython.display import display

from tfos_magic.cluster.runs.known_runs import NAMES
from tfos_magic.cluster.runs.request import RunRequest, simple_values
from tfos_magic.cluster.runs.run import Run
from tfos_magic.cluster.shared import SHARED
from tfos_magic.disk.imports import ImportListener
from tfos_magic.errors import CaptureError, RunInterrupted, UsageError, WorkerError
from tfos_magic.notebook.capture import capture_cell
from tfos_magic.notebook.config import TFOS
from tfos_magic.notebook.describe import describe_plan
from tfos_magic.notebook.options import (
    help_of,
    map_options,
    parse,
    predict_options,
    run_options,
    train_options,
)
from tfos_magic.notebook.runtime import Runtime
from tfos_magic.notebook.strategy_choice import cell_request, checkpoints_of, options_of, source_of
from tfos_magic.notebook.subcommands import Commands
from tfos_magic.notebook.sweeping.options import sweep_options
from tfos_magic.notebook.views.choice import choose_view, detected, request_of_cell, shows_frames, throttled
from tfos_magic.notebook.views.prefixed import PrefixedView
from tfos_magic.notebook.views.view import View
from tfos_magic.tensorboard.server_process import Serving, embed
from tfos_magic.transport.messages import StrategyOptions


@magics_class
class TFOSMagics(Magics):
    """``%tfos``, ``%%tfos_train`` and the other magics."""

    shell: Any
    listener: ImportListener

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        self.settings = TFOS(parent=shell)
        self.runtime = Runtime(shell.user_ns, self.settings, SHARED)
        self.commands = Commands(shell, self.runtime)

    @line_magic
    def tfos(self, line: str) -> None:
        """The cluster and its runs. Each command has --help.

        start        start a TensorFlow cluster on this notebook's Spark session
        status       what the cluster and its workers are doing
        logs         the last lines that workers printed
        scale        go on with another number of workers
        netbench     bandwidth and latency between the workers, and what a step of a model exchanges
        stop         end the cluster; the Spark session stays
        runs         the runs of this notebook: settings and metrics
        compare      some of them side by side
        dashboard    the cluster, the run that goes on and the runs before it, live
        tensorboard  show TensorBoard for a log directory
        doctor       look whether a cluster could start, and say what to fix
        clean        find, and with --yes end, what a crash left on this machine
        """
        self.commands.run(line, inspect.getdoc(TFOSMagics.tfos) or "")

    @line_cell_magic
    @train_options
    def tfos_train(self, line: str, cell: str | None = None) -> Run | None:
        """Run the cell on every worker of a TensorFlow cluster on Spark: an ordinary Keras cell trains distributed.

        Names that the cell reads are taken from the notebook; a Spark DataFrame becomes, under its own name, a
        tf.data.Dataset of this worker's share. The weights are those that one process would get from the same cell.

        %%tfos_train -n 2 -o model
        %%tfos_train --label digit --batch-size 256 --seed 1 -o model,history
        %%tfos_train --label digit --checkpoint-dir checkpoints --resume --detach run
        """
        args = parse(TFOSMagics.tfos_train, line)
        if args.help:
            print(help_of(TFOSMagics.tfos_train))
            return None
        body = _body_of("tfos_train", cell)
        view = choose_view(args.view or self.settings.view, detached=bool(args.detach))
        # The magic's own line counts, so that line numbers in errors are those the notebook shows.
        source = source_of(self.shell, f"%%tfos_train {line}", body)
        captured = capture_cell(source, self.shell.user_ns, args, self.runtime.session_for(args))
        name = NAMES.give()
        request = cell_request(
            source,
            name,
            captured,
            args,
            self.settings,
            self.shell.user_ns,
            strategy=args.strategy,
            detached=bool(args.detach),
            options=StrategyOptions.of(args.strategy, options_of(args)),
            log_dir=self.runtime.log_dir_for(args.log_dir, name),
            private_logs=self.runtime.logs.folder,
            private_files=self.runtime.files.path,
            simple=simple_values({name: self.shell.user_ns.get(name) for name in captured.values}),
            notices=[
                *captured.hints,
                *self.runtime.warnings_for(captured.values),
                *self.runtime.ignored(args),
            ],
            **checkpoints_of(args, self.settings),
        )
        if args.dry_run:
            last = None if self.runtime.last_run is None else self.runtime.last_run.state
            print(describe_plan(request, captured, self.runtime.size_for(args), self.runtime.running, last))
            return None
        request = self._show_tensorboard(request, args, view)
        if args.detach:
            handle = self.runtime.detach(request, args, view)
            self.shell.push({args.detach: handle})
            return handle
        self._execute(request, args, view)
        return None

    @line_cell_magic
    @run_options
    def tfos_run(self, line: str, cell: str | None = None) -> None:
        """Run the cell on every worker as it is: to look around there, not to train.

        Names are taken from the notebook as for %%tfos_train, and forgotten after the cell. What workers print and
        show, figures and a last expression included, appears here under [worker:k]. -o brings a name back as a dict by
        rank. With -w on some workers alone the cell must not wait for the others, as tfos.allreduce would.
        """
        args = parse(TFOSMagics.tfos_run, line)
        if args.help:
            print(help_of(TFOSMagics.tfos_run))
            return
        body = _body_of("tfos_run", cell)
        source = source_of(self.shell, f"%%tfos_run {line}", body)
        captured = capture_cell(source, self.shell.user_ns, args, self.runtime.session_for(args))
        request = cell_request(
            source,
            "tfos_run",
            captured,
            args,
            self.settings,
            self.shell.user_ns,
            strategy="none",
            ranks=args.ranks,
            notices=[*captured.hints, *self.runtime.ignored(args)],
        )
        if not self.runtime.running:
            print(f"Starting a cluster of {self.runtime.size_for(args)} workers ...", flush=True)
        self._execute(request, args, throttled(PrefixedView(), detected()))

    @line_cell_magic
    @map_options
    def tfos_map(self, line: str, cell: str | None = None) -> None:
        """Map the cell's last function or expression over blocks of a DataFrame's rows, as tensors, on its executors.

        A function's parameters name columns; in an expression the columns' names are the tensors. Outputs are given by
        name, as in {"z": x + 3}, and become columns. Shown are the schema and the first ten rows.
        """
        args = parse(TFOSMagics.tfos_map, line)
        if args.help:
            print(help_of(TFOSMagics.tfos_map))
            return
        body = _body_of("tfos_map", cell)
        from tfos_magic.notebook import map_magic

        made = map_magic.map_cell(source_of(self.shell, f"%%tfos_map {line}", body), args, self.shell.user_ns)
        if args.output:
            self.shell.push({args.output: made})
        map_magic.show(made)

    @line_cell_magic
    @sweep_options
    def tfos_sweep(self, line: str, cell: str | None = None) -> None:
        """Search for the hyper-parameters that the cell asks for, by running it once for each trial.

        tfos.suggest_float, suggest_int and suggest_categorical say in the cell what may be chosen; Optuna chooses,
        in the kernel. A trial has a worker of its own, and all rows of the DataFrames that the cell names. With -o,
        study is the study, best the model of the best trial, and other names are those of that trial.

        %%tfos_sweep --trials 40 --metric val_accuracy --pruner asha -o study,best
        """
        args = parse(TFOSMagics.tfos_sweep, line)
        if args.help:
            print(help_of(TFOSMagics.tfos_sweep))
            return
        body = _body_of("tfos_sweep", cell)
        from tfos_magic.notebook.sweeping.sweeping import sweep_cell

        sweep_cell(self.shell, self.runtime, line, body, args)

    @line_magic
    @predict_options
    def tfos_predict(self, line: str) -> None:
        """Predict with a Keras model, or the path of one, for the rows of a DataFrame, on its executors.

        Each row keeps its place and gets the prediction as a new column. Shown are the schema and the first ten rows.
        """
        args = parse(TFOSMagics.tfos_predict, line)
        if args.help:
            print(help_of(TFOSMagics.tfos_predict))
            return
        from tfos_magic.notebook import map_magic

        made = map_magic.predict_line(args, self.shell.user_ns)
        if args.bound:
            self.shell.push({args.bound: made})
        map_magic.show(made)

    def _execute(self, request: RunRequest, args: Any, view: Any) -> None:
        try:
            values = self.runtime.run(request, args, view)
        except (CaptureError, WorkerError, RunInterrupted) as error:
            self.shell.push(error.values)
            raise
        self.shell.push(values)

    def _show_tensorboard(self, request: RunRequest, args: Any, view: View) -> RunRequest:
        """Show TensorBoard where it is wanted, in the view or below it; gives the request, with a log directory."""
        show = self.settings.tensorboard if args.tensorboard is None else args.tensorboard
        if not show:
            return request
        if not request.log_dir:
            request = dataclasses.replace(request, log_dir=self.runtime.logs.folder(request.name))
        result = self.runtime.tensorboard(os.path.dirname(request.log_dir))
        if not (isinstance(result, Serving) and view.tensorboard(result.url)):
            display(embed(result, link=not shows_frames(request_of_cell())), raw=True)
        return request


def _body_of(name: str, cell: str | None) -> str:
    """The cell below a magic; ``None`` where it was called on a line, which is for ``--help`` alone."""
    if cell is None:
        raise UsageError(
            f"%%{name}, with two signs, goes on the first line of a cell; %{name} --help tells its options."
        )
    return cell
