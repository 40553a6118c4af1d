"""Help tells what each option is where it is left out."""

from __future__ import annotations

from typing import Any

import pytest

from tfos_magic.notebook.config import TFOS, setting_of
from tfos_magic.notebook.magics import TFOSMagics
from tfos_magic.notebook.options import help_of
from tfos_magic.notebook.subcommands import COMMANDS


@pytest.mark.parametrize(
    ("magic", "flags", "default"),
    [
        (TFOSMagics.tfos_train, "--batch-size BATCH_SIZE", "32"),
        (TFOSMagics.tfos_train, "--max-restarts MAX_RESTARTS", "2"),
        (TFOSMagics.tfos_train, "--start-timeout START_TIMEOUT", "120"),
        (TFOSMagics.tfos_train, "--sync-every SYNC_EVERY", "16"),
        (TFOSMagics.tfos_predict, "--batch-size BATCH_SIZE", "1024"),  # which has no setting
        (COMMANDS["start"], "--workers WORKERS", "2"),
    ],
)
def test_an_options_help_has_its_default(magic: Any, flags: str, default: str) -> None:
    _, _, text = " ".join(help_of(magic).partition("\n\n")[2].split()).partition(flags)
    assert f"; default: {default}." in text.partition(" --")[0]


def test_a_default_that_is_nothing_is_not_told() -> None:
    text = " ".join(help_of(TFOSMagics.tfos_train).split())
    assert "Names to bring back, with commas." in text
    assert "default: None" not in text
    assert "default: False" not in text


def test_each_setting_of_an_option_is_named_in_its_help() -> None:
    assert (setting_of(["-n", "--workers"]), setting_of(["--resume"])) == ("workers", "")
    named = {setting_of([each]) for each in ("--keep", "--view", "--spool-gb", "--via", "--log-dir")}
    assert named == {"keep_checkpoints", "view", "spool_gb", "via", "log_dir"} <= set(TFOS.class_traits(config=True))
