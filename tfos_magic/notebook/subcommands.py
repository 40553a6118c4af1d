"""What ``%tfos`` does, by the name of its command."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import Any

from IPython.core.magic_arguments import argument, construct_parser, magic_arguments
from IPython.display import display

from tfos_magic.cluster.cluster import TFCluster
from tfos_magic.cluster.preflight import examine
from tfos_magic.cluster.startup import Waits, heard_by
from tfos_magic.cluster.workers import ClusterPhase
from tfos_magic.errors import Interrupted, UsageError
from tfos_magic.limits import above_zero, positive
from tfos_magic.notebook.describe import (
    describe_feeds,
    describe_finding,
    describe_orphans,
    describe_status,
    json_of,
    report_of,
    status_dict,
)
from tfos_magic.notebook.netbench.bundle import bundle
from tfos_magic.notebook.netbench.command import model_of, seconds_computed
from tfos_magic.notebook.options import (
    Decorator,
    cluster_options,
    grouped,
    help_of,
    help_option,
    parse,
    servers_option,
)
from tfos_magic.notebook.runtime import Runtime
from tfos_magic.notebook.signals import interruptible
from tfos_magic.notebook.views.choice import detected, request_of_cell, shows_frames
from tfos_magic.notebook.views.picture import summary
from tfos_magic.notebook.views.tables import run_table
from tfos_magic.notebook.views.time_spent import advice
from tfos_magic.notebook.views.view import show_again
from tfos_magic.notebook.views.wording import count_of
from tfos_magic.processes.orphans import end_orphans, find_orphans
from tfos_magic.processes.temporary_folder import left_behind, remove
from tfos_magic.spark.session import is_stopped
from tfos_magic.tensorboard.server_process import embed

COMPARED = 8


def command_parser(name: str, *decorators: Decorator) -> Any:
    """A stand-in function with a parser, for one command of ``%tfos``."""

    def command(line: str) -> None: ...

    command.__name__, command.__doc__ = name, None
    decorated = grouped(magic_arguments(), *decorators, help_option)(command)
    decorated.__doc__ = None  # where the first parser has left its help
    decorated.parser = construct_parser(decorated)  # type: ignore[attr-defined]
    decorated.parser.prog = name.lstrip("%").replace("_", " ")  # type: ignore[attr-defined]
    return decorated


COMMANDS = {
    "start": command_parser("%tfos_start", cluster_options, servers_option),
    "status": command_parser(
        "%tfos_status",
        argument("--json", action="store_true", help="Print JSON."),
        argument("-o", "--output", default=None, help="Name for the same as a dict; prints nothing."),
    ),
    "logs": command_parser(
        "%tfos_logs",
        argument("-w", "--worker", type=int, default=None, help="One rank only."),
        argument("--tail", type=positive, default=50, help="Lines of each worker."),
    ),
    "stop": command_parser(
        "%tfos_stop", argument("--force", action="store_true", help="Cancel the Spark job without asking the workers.")
    ),
    "scale": command_parser(
        "%tfos_scale", argument("workers", type=positive, help="How many workers the cluster is to have.")
    ),
    "netbench": command_parser(
        "%tfos_netbench",
        argument("model", nargs="?", default=None, help="Keras model of the notebook, or bytes of gradients, as 64MB."),
        argument("--seconds", type=above_zero, default=5.0, help="Seconds for each pair of workers; a minute in all."),
        argument("-o", "--output", default=None, help="Name for what was measured."),
    ),
    "runs": command_parser("%tfos_runs"),
    "compare": command_parser(
        "%tfos_compare", argument("runs", nargs="*", metavar="RUN", help="Names or numbers of runs; default: the last.")
    ),
    "dashboard": command_parser(
        "%tfos_dashboard", argument("--sidebar", action="store_true", help="Beside the notebook, not under the cell.")
    ),
    "doctor": command_parser(
        "%tfos_doctor",
        cluster_options,
        servers_option,
        argument("--report", action="store_true", help="Print it as text to paste into an issue, with versions."),
    ),
    "clean": command_parser("%tfos_clean", argument("--yes", action="store_true", help="End what was found.")),
    "tensorboard": command_parser(
        "%tfos_tensorboard",
        argument("logdir", nargs="?", default=None, help="Log directory; default: that of the last run."),
        argument("--height", type=positive, default=600, help="Height of the frame in pixels."),
        argument("--link", action="store_true", help="Show a link instead of a frame."),
        argument("--stop", action="store_true", help="End TensorBoard."),
    ),
}


class Commands:
    """The commands of ``%tfos``, one method each: ``runtime`` does what they ask for."""

    def __init__(self, shell: Any, runtime: Runtime) -> None:
        self.shell, self.runtime = shell, runtime

    def run(self, line: str, about: str) -> None:
        """Do what ``line`` says; a line that says nothing shows what there is, ``about``."""
        command, _, rest = line.strip().partition(" ")
        if command in ("", "--help", "-h", "help"):
            print(about)
            return
        if command not in COMMANDS:
            raise UsageError(f"%tfos has no command {command!r}; it has {', '.join(COMMANDS)}.")
        if "--help" in rest.split():  # also where something that it needs is not there
            print(help_of(COMMANDS[command]))
            return
        try:
            getattr(self, f"_{command}")(parse(COMMANDS[command], rest))
        except KeyboardInterrupt as interrupt:
            if isinstance(interrupt, Interrupted):
                raise
            ended = " Nothing that it started is left running." if command == "start" else ""
            raise Interrupted(f"%tfos {command} was interrupted.{ended}") from None

    def _start(self, args: Any) -> None:
        for text in self.runtime.ignored(args):
            print(f"note: {text}")
        print(describe_status(self.runtime.start(args).status()))

    def _status(self, args: Any) -> None:
        cluster, run = self.runtime.cluster, self.runtime.last_run
        if args.output or args.json:
            known = status_dict(cluster.status() if cluster else None, self.runtime.fed, run.state if run else None)
            if args.output:
                self.shell.push({args.output: known})
            else:
                print(json_of(known))
        elif cluster is None and (said := self.runtime.shared.starting):
            print(said)
        elif cluster is None:
            print("There is no cluster. %tfos start makes one; so does %%tfos_train.")
        else:
            print(describe_status(cluster.status()))
            self._show_run()

    def _show_run(self) -> None:
        """Show the runs that go on or wait, the newest first, or say how the last one ended."""
        unended, last = self.runtime.shared.queue.runs, self.runtime.last_run
        for queued in reversed(unended):
            if len(queued.runs) == 1:
                show_again(*queued.runs)
            else:
                print(queued)
        if not unended and last is not None:
            print(f"{last.state.name}: {summary(last.state)}")
            if text := advice(last.state):
                print(f"note: {text}")
        if self.runtime.fed:
            print(describe_feeds(self.runtime.fed))

    def _logs(self, args: Any) -> None:
        if self.runtime.cluster is None:
            print("There is no cluster, so there are no logs.")
            return
        logs = self.runtime.cluster.logs(args.worker, args.tail)
        if not logs:
            raise UsageError(f"There is no worker {args.worker}: %tfos status lists those that there are.")
        for rank, lines in logs.items():
            print(f"worker {rank}:")
            print("\n".join(f"  {line}" for line in lines) or "  (nothing yet)")

    def _scale(self, args: Any) -> None:
        cluster = self._cluster(f"There is no cluster: %tfos start -n {args.workers} makes one.")
        before = cluster.wanted
        with heard_by(Waits()):
            cluster.scale(args.workers)
        if args.workers == cluster.size and before not in (None, cluster.size):
            print(f"The run goes on as it is: the change to {count_of(before, 'worker')} is withdrawn.")
        if cluster.wanted not in (None, cluster.size):
            workers = count_of(args.workers, "worker")
            print(f"The run goes on with {workers} from its next checkpoint on, which it takes now.")
        print(describe_status(cluster.status()))

    def _cluster(self, otherwise: str) -> TFCluster:
        """The cluster that runs. Raises :class:`UsageError` without one, and while it starts."""
        cluster = self.runtime.cluster
        if cluster is not None and cluster.phase is ClusterPhase.STARTING:
            raise UsageError("The cluster is still starting: wait until it runs, as %tfos status shows.")
        if cluster is None or not self.runtime.running:
            raise UsageError(otherwise)
        return cluster

    def _netbench(self, args: Any) -> None:
        cluster = self._cluster("There is no cluster to measure: %tfos start -n 2 makes one.")
        model = model_of(args.model, self.shell.user_ns)
        with interruptible():
            bench = cluster.netbench(model, args.seconds)
        if args.output:
            self.shell.push({args.output: bench})
        last = self.runtime.last_run
        display(bundle(bench, seconds_computed(last.state if last else None)), raw=True)

    def _stop(self, args: Any) -> None:
        cluster = self.runtime.cluster
        if not self.runtime.stop(args.force):
            print("There is no cluster.")
        elif cluster is not None and (is_stopped(cluster.spark) or cluster.membership.session_ended):
            print("The cluster has ended, as its Spark session had before.")
        else:
            print("The cluster has ended; the Spark session is as it was.")

    def _runs(self, args: Any) -> None:
        if not self.runtime.known.runs:
            print("There is no run yet.")
        else:
            display(run_table(self.runtime.known.states), raw=True)

    def _compare(self, args: Any) -> None:
        runs = [self.runtime.known.find(name) for name in args.runs] or self.runtime.known.runs[-COMPARED:]
        if not runs:
            print("There is no run yet.")
        elif detected() == "widget":
            display(resolve_name("tfos_magic.widgets:Compare")(runs))
        else:
            display(run_table([run.state for run in runs]), raw=True)

    def _dashboard(self, args: Any) -> None:
        if detected() != "widget":
            self._status(parse(COMMANDS["status"], ""))
            self._runs(args)
            return
        dashboard = resolve_name("tfos_magic.widgets:Dashboard")(self.runtime.known)
        if not (args.sidebar and _beside(dashboard)):
            display(dashboard)

    def _doctor(self, args: Any) -> None:
        findings = []
        for finding in examine(
            self.runtime.known_session(), self.runtime.requested_cluster(args), self.runtime.running
        ):
            if not args.report:
                print(describe_finding(finding), flush=True)
            findings.append(finding)
        if args.report:
            print(report_of(findings))
            return
        bad = sum(bool(finding.fix) for finding in findings)
        print(f"{bad} of {len(findings)} need a fix." if bad else "All is well.")

    def _clean(self, args: Any) -> None:
        orphans, folders = find_orphans(), left_behind()
        if not (orphans or folders):
            print("Nothing was left behind on this machine.")
        elif args.yes:
            if orphans:
                print(f"{end_orphans(orphans)} of {len(orphans)} processes ended.")
            if folders:
                print(f"{remove(folders)} of {len(folders)} folders removed.")
        else:
            found = "\n".join([*([describe_orphans(orphans)] if orphans else []), *folders])
            print(f"Left behind:\n{found}\n%tfos clean --yes ends and removes them.")

    def _tensorboard(self, args: Any) -> None:
        if args.stop:
            count = self.runtime.boards.stop(args.logdir)
            print(f"{count} TensorBoard ended." if count else "No TensorBoard was running.")
            return
        link = args.link or not shows_frames(request_of_cell())
        display(embed(self.runtime.tensorboard(args.logdir), args.height, link), raw=True)


def _beside(widget: Any) -> bool:
    """Show ``widget`` beside the notebook; False where the package for that is not there, which is said."""
    try:
        beside = resolve_name("sidecar:Sidecar")(title="TFOS")
    except ImportError:
        print("--sidebar needs the package sidecar: pip install sidecar, and load the page again. It is shown here:")
        return False
    with beside:
        display(widget)
    return True
