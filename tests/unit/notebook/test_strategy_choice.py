import os
from types import SimpleNamespace

import pytest
from IPython.core.inputtransformer2 import TransformerManager

from tfos_magic.cluster.runs.request import RunRequest
from tfos_magic.errors import UsageError
from tfos_magic.notebook.config import TFOS
from tfos_magic.notebook.magics import TFOSMagics
from tfos_magic.notebook.options import parse
from tfos_magic.notebook.strategy_choice import checkpoints_of, options_of, reading_of, servers_for, source_of
from tfos_magic.notebook.subcommands import COMMANDS


def arguments(line: str):
    return parse(TFOSMagics.tfos_train, line)


@pytest.mark.parametrize(
    ("line", "options"),
    [
        ("", {}),
        ("--bucket-mb 2 --compression bfloat16", {"bucket_mb": 2.0, "compression": "bfloat16"}),
        ("--strategy async --ps 2 --max-staleness 0", {"max_staleness": 0}),
        ("--strategy local", {}),
        (
            "--strategy local --sync-every 8 --average-state --outer-momentum 0.9 --outer-learning-rate 0.7",
            {"sync_every": 8, "average_state": True, "outer_momentum": 0.9, "outer_learning_rate": 0.7},
        ),
    ],
)
def test_a_strategy_gets_the_options_that_were_given(line: str, options: dict) -> None:
    assert options_of(arguments(line)) == options


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--sync-every 4", "--sync-every belongs to --strategy local"),
        ("--strategy async --compression float16", "--compression belongs to --strategy sync or local"),
        ("--ps 1", "--ps belongs to --strategy async"),
        ("--strategy async --ps 0", "give --ps 1 or more"),
    ],
)
def test_options_of_another_strategy_are_refused(line: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        options_of(arguments(line))


def test_rows_are_shuffled_unless_told_otherwise_and_a_seed_is_one_that_numpy_takes() -> None:
    config = TFOS(batch_size=16)
    assert reading_of(arguments(""), config) == {"batch_size": 16, "shuffle": True, "seed": None}
    told = reading_of(arguments("--no-shuffle --seed 0 --batch-size 8"), config)
    assert told == {"batch_size": 8, "shuffle": False, "seed": 0}
    assert RunRequest("", **reading_of(arguments("--seed 4294967295"), config)).seed == 2**32 - 1
    with pytest.raises(UsageError, match="from 0 to 4294967295"):
        RunRequest("", **reading_of(arguments("--seed 4294967296"), config))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--sync-every 0", "not a whole number of at least 1"),
        ("--outer-momentum 1", "from 0 to below 1"),
        ("--outer-learning-rate nan", "not a finite number"),
        ("--bucket-mb 0", "not greater than 0"),
        ("--max-restarts -1", "."),
        ("--max-stale 3 --compress none --sync-evry 2", "Did you mean '--sync-every'"),
    ],
)
def test_values_that_make_no_sense_are_refused(line: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        arguments(line)


def test_async_asks_for_one_server_when_none_is_named() -> None:
    assert servers_for(arguments("--strategy async"), TFOS()) == 1
    assert servers_for(arguments("--strategy async"), TFOS(ps=3)) == 3
    assert servers_for(arguments("--strategy async --ps 2"), TFOS()) == 2
    assert servers_for(arguments(""), TFOS(ps=3)) is None
    assert servers_for(parse(COMMANDS["start"], "--ps 2"), TFOS()) == 2


def test_checkpoint_options_become_the_request() -> None:
    asked = checkpoints_of(arguments("--checkpoint-dir here --checkpoint-every 5 --keep 2 --max-restarts 0"), TFOS())
    assert asked == {
        "checkpoint_dir": os.path.abspath("here"),
        "checkpoint_every": 5,
        "keep_checkpoints": 2,
        "resume": False,
        "max_restarts": 0,
    }
    assert checkpoints_of(arguments("--checkpoint-dir s3://bucket/x"), TFOS())["checkpoint_dir"] == "s3://bucket/x"
    assert checkpoints_of(arguments("--resume"), TFOS(checkpoint_dir="/there"))["resume"] is True


def test_resuming_needs_a_directory() -> None:
    with pytest.raises(UsageError, match="add --checkpoint-dir"):
        checkpoints_of(arguments("--resume"), TFOS())


def test_a_cell_keeps_the_numbers_of_its_lines() -> None:
    shell = SimpleNamespace(transform_cell=TransformerManager().transform_cell)
    source = source_of(shell, "%%tfos_train -n 2", "\n  \nx = 1\n1 / 0\n")
    assert source.splitlines() == ["# %%tfos_train -n 2", "", "", "x = 1", "1 / 0"]


def test_lists_of_names_that_are_given_twice_are_one_list() -> None:
    args = parse(TFOSMagics.tfos_train, "-o model,x --features a -o history --features b,c")
    assert (args.output, args.features) == (["model", "x", "history"], ["a", "b", "c"])
    assert parse(TFOSMagics.tfos_train, "-o one").output == ["one"]  # and nothing of the line before
    assert parse(TFOSMagics.tfos_run, "-w 0 -w 2-3").ranks == [0, 2, 3]


@pytest.mark.parametrize("line", ["--idle-timeout -5", "--gpus -1", "--start-timeout nan"])
def test_numbers_that_cannot_be_are_refused(line: str) -> None:
    with pytest.raises(UsageError, match=line.split()[1]):
        parse(TFOSMagics.tfos_train, line)
