"""Two real trainers without Spark, which run cells in a directory as their notebook would have them run."""

from __future__ import annotations

import ctypes
import json
import os
import select
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tfos_magic.disk.module_texts import local_sources
from tfos_magic.disk.place import tell_place
from tfos_magic.processes.child_process import TrainerProcess
from tfos_magic.processes.fork_client import ForkClient
from tfos_magic.transport.messages import Notice, RunCell, RunFinished, StartTrainer, TrainerReady
from tfos_magic.values import pack

WORKERS = 2
SECONDS, GRACE = 120.0, 10.0
TELL = """
if tfos.rank() == 0:
    import json
    with open({path!r}, "w") as file:
        json.dump({{name: globals()[name] for name in {names}}}, file)
"""
_PR_CAPBSET_DROP, _CAP_SYS_ADMIN = 24, 21


def main() -> None:
    """Run the cells of the job on standard input; print what each gave, as JSON, on the last line."""
    job = json.load(sys.stdin)
    if not job["may_mount"]:  # what this process starts, of whatever user, has no right to mount
        ctypes.CDLL(None).prctl(_PR_CAPBSET_DROP, _CAP_SYS_ADMIN, 0, 0, 0)
    trainers = _start()
    temporary, answers = tempfile.mkdtemp(prefix="files-"), tempfile.mkdtemp(prefix="answers-")
    found = []
    try:
        for number, cell in enumerate(job["cells"]):
            for path, text in cell.get("write", {}).items():
                with open(path, "w") as file:
                    file.write(text)
            place, answer = tell_place(temporary), os.path.join(answers, str(number))
            if cell.get("elsewhere"):
                place["host"] = "another"
            run = RunCell(
                run_id=f"run-{number}",
                source=cell["source"] + TELL.format(path=answer, names=cell["outputs"]),
                filename="<cell>",
                strategy=cell.get("strategy", "sync"),
                seed=1,
                outputs=[],
                place=place,
                sources=local_sources(cell["source"]),
                payload=pack(job["names"]),
            )
            for trainer in trainers:
                trainer.send(run)
            found.append(_outcome(trainers, answer))
    finally:
        for trainer in trainers:
            trainer.kill()
    print(json.dumps(found))


def _start() -> list[TrainerProcess]:
    shared = tempfile.mkdtemp(prefix="tfos-shared-")
    held = []
    for _ in range(WORKERS):
        each = socket.socket()
        each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        each.bind(("127.0.0.1", 0))
        held.append(each)
    addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in held]
    forks = ForkClient("0", {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)})
    trainers = [TrainerProcess(forks, 1, rank, {"CUDA_VISIBLE_DEVICES": "-1"}, shared) for rank in range(WORKERS)]
    for rank, trainer in enumerate(trainers):
        trainer.send(StartTrainer(1, rank, addresses, rank, WORKERS, [], secret="of the test"))
    _until(trainers, lambda messages: sum(isinstance(m, TrainerReady) for m in messages) == WORKERS)
    return trainers


def _outcome(trainers: list[TrainerProcess], answer: str) -> dict[str, Any]:
    messages = _until(trainers, lambda messages: sum(isinstance(m, RunFinished) for m in messages) == WORKERS)
    ends = {m.rank: m for m in messages if isinstance(m, RunFinished)}
    return {
        "errors": [ends[rank].error if rank in ends else {"message": "did not end"} for rank in range(WORKERS)],
        "values": json.loads(Path(answer).read_text()) if os.path.exists(answer) else {},
        "notices": [m.text for m in messages if isinstance(m, Notice)],
    }


def _until(trainers: list[TrainerProcess], done: Any) -> list[Any]:
    messages: list[Any] = []
    deadline = time.monotonic() + SECONDS
    while not done(messages):
        ready, _, _ = select.select([t.inbox for t in trainers], [], [], max(0.0, deadline - time.monotonic()))
        if not ready and any(isinstance(m, RunFinished) for m in messages):
            return messages  # the other one waits for a rank that has failed
        if not ready:
            raise TimeoutError(f"the trainers said no more than {messages} within {SECONDS:.0f} s")
        for trainer in trainers:
            if trainer.inbox in ready:
                messages += trainer.inbox.taken()
            for fd in list(trainer.streams):
                sys.stderr.write(trainer.read(fd))
        if any(isinstance(m, RunFinished) and m.error for m in messages):
            deadline = min(deadline, time.monotonic() + GRACE)
        if None in messages:
            raise RuntimeError(f"a trainer has ended: {messages}, {[_end(trainer) for trainer in trainers]}")
    return messages


def _end(trainer: TrainerProcess) -> str:
    """How a trainer ended, and its last words."""
    deadline = time.monotonic() + GRACE
    while (status := trainer.exit_status()) is None and not trainer.ready and time.monotonic() < deadline:
        time.sleep(0.05)
    said = "".join(trainer.read(fd) for fd in list(trainer.streams))
    return f"rank {trainer.rank}: code and signal {status}, {[*trainer.tail]}, {said}"


if __name__ == "__main__":
    main()
