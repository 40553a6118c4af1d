"""The page that scale.py writes: tables of what was measured, the formulas, and what is computed from these."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

import psutil
from feed import PIXELS, ROW_BYTES
from scale_cluster import BATCH, PLANS, WEIGHT_BYTES, Cluster, split
from scale_laws import Law, Laws, Point, first, load_of, step_of
from scale_sums import Formed, Sums

MODELS = {"1 M": 1_000_000, "25 M": 25_000_000}
RATES = {"10 Gb/s": 10e9, "25 Gb/s": 25e9}
FORETOLD = (64, 256)
STEP_SECONDS = 0.1
LINKS = {False: "one host", True: "TCP"}

TEXT = """# How cost grows with the number of workers

Written by `benchmarks/scale.py` on {date}: {system}, {cores} cores, {memory:.0f} GiB of memory; in the last quarter of
an hour the load average was {load:.1f}, the benchmark's own ranks included.
What says *measured* comes from this run. What says *computed* comes from the formulas that were fitted to it, and
nobody has run it.

Clusters of n workers train a dense model of {weights:,} float32 weights (P = {bytes:,} bytes) with Adam, on the same
rows in global batches of {batch}, fed from Spark. CPU is processor seconds, of programs and system.

## Between ranks (measured)

On one host bytes are those written to shared memory, and calls are messages of 8 bytes by which ranks meet. By TCP
each rank takes the others to be on other hosts. The last column is the largest difference between the product's count
of bytes and what its sockets were given.

{trained}

## Sums alone (measured)

A process for each rank, without Keras and Spark, so that {ranks} ranks fit. Predicted is what the formulas below say.
The time on the clock is that of all ranks on the cores of this one machine.

{summed}

Time to form a group, in ms on the clock, until all ranks were in it (medians):

{formed}

## To the kernel (measured)

Of the longest run of each cluster, {epochs} epochs of {steps} steps, with its beginning and end. Bytes are those of
TCP, with encryption and checkpoints, which rank 0 alone sends, of 3 P each. Idle is a cluster without a run.

{said}

## Rows (measured)

Rows of {pixels} floats and a label. After the first epochs all spools together hold each row once, and after the later
ones not a byte more: {once}.

{fed}

## Formulas (fitted to what was measured, by least squares)

b is 2 (n-1)/n P, or (n-1) P for a sum of few bytes, which each rank adds up by itself; r is the number of rounds that
a sum is shared out in, and s is 1 where more than two ranks share out one in memory. T are seconds, E epochs, m
messages, c bytes of checkpoints, R runs. Residuals are parts of what was measured: the root of their mean square, and
the largest. A term whose factor would be below zero is left out.

{formulas}

## What follows (computed)

Each worker is on a host of its own. A step computes for {step:.0f} ms and exchanges then: nothing is taken to overlap,
and the one thread of a rank sends, copies and adds up in turn. Values that are shared
out take a rank less than 2 P bytes, however many workers there are; its headers and calls grow with them, and so does
what it does beside for each of its peers. Times are ms of a step.

{predicted}

The kernel, while all train:

{loaded}

## What breaks first (computed)

At the least power of two of workers where it holds:

{breaks}

Not in the formulas: switches that drop packets when many hosts send to one at once, hosts that are slower than others,
and what Spark takes to start so many tasks.

## Many agents (measured by `benchmarks/agents.py`; ten thousand on paper)

1,000 simulated agents that speak the real protocol, on the two cores that the kernel shares with them: 2,000 messages
a second are heard with half a core and 100 MB, a stop reaches all and is answered by all in 1.1 s, a picture takes 12
ms and 23 kB. However many ranks there are, they send at most 1,000 messages of progress a second in all.

What 10,000 agents would break, in this order:

- **Signs of life.** A message costs the kernel 0.25 ms. 10,000 signs of life a second fill two and a half cores, and
  one thread hears them: it is full at about 3,000.
- **The exchange of gradients.** Every rank talks to every other: 10,000 open connections in each rank, a hundred
  million in all, and 256 ranks of a small model compute for 60% of their time already (above).
- **Files.** A connection is an open file of the kernel: 10,000 need a limit above the usual 1,024, and the handshakes
  of 1,000, which take 2 s, take 20 s.
- **Spark's jobs.** Each agent is a job of its own, with a thread beside the kernel: 10,000 threads.
- **Broadcasts.** A cell goes to each agent by itself: 1 MB of it is 10 GB out of the kernel.
- **The picture.** 10,000 rows are 230 kB four times a second.

What would carry it is a tree. A relay for each hundred agents, on an executor, speaks the same protocol to both
sides: upward one message a second with the signs of life of its hundred, the last progress of each, and who was lost;
downward one copy of a cell, which it hands on. The kernel then hears 100 relays, as it hears 100 agents now, sends a
cell 100 times, and gets rows of workers in sums, with those of one relay on demand. Gradients would go by recursive
halving among hosts, whose peers grow with the logarithm of their number. Relays would be started by one Spark job
with a task each.
"""


def table(heads: str, rows: Iterable[Iterable[object]]) -> str:
    names = heads.split(" | ")
    lines = [names, ["---:"] * len(names), *([str(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def trained(clusters: list[Cluster]) -> Iterator[Iterable[object]]:
    for _, runs in clusters:
        (per_epoch, per_step), (_, calls) = split(runs, "sent"), split(runs, "calls")
        beside, cpu = split(runs, "trainers")
        counted = max(abs(run.socket_bytes - run.sent) for run in runs) if runs[0].apart else "-"
        told = f"{per_step:,.0f}", f"{calls:.1f}", f"{per_epoch:,.0f}", f"{cpu * 1e3:.1f}", f"{beside * 1e3:.0f}"
        yield runs[0].workers, LINKS[runs[0].apart], *told, counted


def summed(sums: list[Sums], law: Mapping[str, Law]) -> Iterator[Iterable[object]]:
    for one in sums:
        point = Point(one.ranks, one.size)
        names = "bytes of a sum and rank", "calls of a sum and rank", "CPU seconds of a sum and rank"
        said = [
            f"{law[name](point) * scale:,.1f}" if one.apart else ""
            for name, scale in zip(names, (1, 1, 1e3), strict=True)
        ]
        measured = f"{one.sent:,.0f}", said[0], f"{one.calls:.1f}", said[1], f"{one.cpu * 1e3:.2f}", said[2]
        yield one.ranks, LINKS[one.apart], f"{one.size:,}", *measured, f"{one.seconds * 1e3:.1f}"


def formed_groups(formed: list[Formed]) -> Iterator[Iterable[object]]:
    for ranks, group in groupby(formed, lambda one: one.ranks):
        yield ranks, *(f"{one.seconds * 1e3:.0f}" for one in group)


def said(clusters: list[Cluster]) -> Iterator[Iterable[object]]:
    for idle, runs in clusters:
        run, heard = runs[-1], runs[-1].heard
        per = f"{heard.messages / run.epochs:.0f}", f"{heard.messages / run.all_steps:.2f}"
        size = f"{heard.bytes / run.epochs:,.0f}", f"{heard.bytes / run.all_steps:,.0f}", heard.kinds["CheckpointPart"]
        cpu = heard.kernel / heard.seconds, idle.kernel / idle.seconds, heard.agents / heard.seconds / run.workers
        rate = f"{idle.messages / idle.seconds:.1f}"
        yield run.workers, LINKS[run.apart], rate, *per, *size, *(f"{part:.1%}" for part in cpu)


def fed(clusters: list[Cluster]) -> Iterator[Iterable[object]]:
    for _, runs in clusters:
        began, ended = runs[1].spooled, runs[-1].spooled
        spools = f"{began[0]:,}", f"{began[1]:,}", sum(run.epochs for run in runs[2:]), f"{ended[1] - began[1]:,}"
        yield runs[0].workers, LINKS[runs[0].apart], f"{_rows():,}", f"{_rows() * ROW_BYTES:,}", *spools


def _rows() -> int:
    return sum({steps for _, steps in PLANS}) * BATCH


def _once(clusters: list[Cluster]) -> str:
    spools = [(runs[1].spooled, runs[-1].spooled) for _, runs in clusters]
    held = all(began[0] == _rows() and began == ended for began, ended in spools)
    return "so a row travels once, whatever the number of workers" if held else "**in this run that does not hold**"


def predicted(laws: Laws) -> Iterator[Iterable[object]]:
    for model, weights in MODELS.items():
        for count in FORETOLD:
            for name, rate in RATES.items():
                step = step_of(laws, count, weights, rate)
                parts = (f"{part * 1e3:,.1f}" for part in (step.wire, step.touching, step.calling, step.exchange))
                yield model, count, name, *parts, f"{step.computing(STEP_SECONDS):.0%}"


def loaded(laws: Laws) -> Iterator[Iterable[object]]:
    for count in FORETOLD:
        messages, load = load_of(laws, count)
        yield count, f"{messages:,.0f}", f"{load:.0%}"


def breaks(laws: Laws) -> str:
    """What breaks at how many workers, in their order."""
    found: list[tuple[int, str]] = []
    for model, weights in MODELS.items():
        for name, rate in RATES.items():
            if half := first(_longer(laws, weights, rate)):
                why = step_of(laws, half, weights, rate).most
                found.append((half, f"{model} weights at {name} exchange longer than they compute, most for {why}."))
    if busy := first(lambda n: load_of(laws, n)[1] > 1):
        found.append((busy, "the kernel's thread that hears the workers fills a core."))
    return "\n".join(f"- {count} workers: {what}" for count, what in sorted(found))


def _longer(laws: Laws, weights: int, rate: float) -> Callable[[int], bool]:
    return lambda n: step_of(laws, n, weights, rate).computing(STEP_SECONDS) < 0.5


def page(clusters: list[Cluster], formed: list[Formed], sums: list[Sums], law: Mapping[str, Law]) -> str:
    """The whole of it, in Markdown."""
    by_sum = law["bytes of a sum and rank"], law["CPU seconds of a sum and rank"]
    laws = Laws(*by_sum, *(law[name] for name in ("heartbeats", "messages of progress", "CPU seconds of the kernel")))
    formulas = ((name, f"{fitted}", fitted.error) for name, fitted in law.items())
    tables: dict[str, Any] = {
        "trained": table(
            "n | link | bytes a step, rank | calls a step, rank | bytes an epoch, rank | CPU ms a step, all | "
            "CPU ms an epoch, all | difference",
            trained(clusters),
        ),
        "summed": table(
            "n | link | bytes | sent, rank | predicted | calls, rank | predicted | CPU ms, rank | predicted | clock ms",
            summed(sums, law),
        ),
        "formed": table("n | one host | TCP", formed_groups(formed)),
        "said": table(
            "n | link | messages a second, idle | messages an epoch | a step | bytes an epoch | a step | checkpoints | "
            "kernel, of a core | kernel, idle | an agent",
            said(clusters),
        ),
        "fed": table(
            "n | link | rows | bytes of values | rows in spools | bytes in spools | later epochs | bytes more",
            fed(clusters),
        ),
        "formulas": table("what | formula | residuals", formulas),
        "predicted": table(
            "weights | n | network | on the wire | copying and adding | calls and peers | exchange | computes",
            predicted(laws),
        ),
        "loaded": table("n | messages a second | of a core", loaded(laws)),
    }
    return TEXT.format(
        **tables,
        breaks=breaks(laws),
        once=_once(clusters),
        date=datetime.date.today(),
        system=f"{platform.system()} {platform.machine()}",
        cores=os.cpu_count(),
        memory=psutil.virtual_memory().total / (1 << 30),
        load=os.getloadavg()[2],
        weights=WEIGHT_BYTES // 4,
        bytes=WEIGHT_BYTES,
        batch=BATCH,
        ranks=max(one.ranks for one in sums),
        epochs=PLANS[-1][0],
        steps=PLANS[-1][1],
        pixels=PIXELS,
        step=STEP_SECONDS * 1e3,
    )
