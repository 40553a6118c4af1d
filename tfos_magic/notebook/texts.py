"""What the texts of options mean. Each function reads one kind and raises :class:`UsageError` for others."""

from __future__ import annotations

import re
from argparse import ArgumentParser

from tfos_magic.errors import UsageError, did_you_mean
from tfos_magic.limits import positive


class Extent(int):
    """How many workers there are to be at least; at most there are ``most``."""

    most = 0


def extent(text: str) -> int:
    """``N`` workers, or ``MIN:MAX`` of them."""
    least, sign, most = text.partition(":")
    if not sign:
        return positive(text)
    made = Extent(positive(least))
    made.most = positive(most)
    if made.most < made:
        raise UsageError(f"-n takes MIN:MAX, the smaller number first, not {text!r}.")
    return made


def names(text: str) -> list[str]:
    """``a,b`` as a list; blanks around names and empty parts do not count."""
    return [part.strip() for part in text.split(",") if part.strip()]


def pair(text: str) -> tuple[str, str]:
    """``NAME=DF`` as two names."""
    name, sign, frame = text.partition("=")
    if not sign and text.strip().isidentifier():
        raise UsageError(f"--feed takes NAME=DATAFRAME: --feed {name.strip()}={name.strip()} keeps the name.")
    if not (sign and name.strip().isidentifier() and frame.strip().isidentifier()):
        raise UsageError(f"--feed takes NAME=DATAFRAME, such as --feed train=train_df; {text!r} is not that.")
    return name.strip(), frame.strip()


def ranks(text: str) -> list[int]:
    """Ranks with commas, ``0,2``, or as ranges, ``4-7``."""
    numbers: list[int] = []
    for part in names(text):
        first, _, last = part.partition("-")
        if not (first.isdigit() and (last or first).isdigit()):
            raise UsageError(f"-w takes workers' numbers such as 0,2 or 4-7, not {text!r}.")
        numbers.extend(range(int(first), int(last or first) + 1))
    return numbers


def of_unknown(parser: ArgumentParser, message: str) -> str:
    """What a parser says of a line that it does not take, with the option that was meant."""
    unknown = re.search(r"unrecognized arguments: (\S+)", message)
    if not unknown:
        return f"{message}. See %{parser.prog.lstrip('%')} --help."
    word = unknown.group(1)
    known = [option for action in parser._actions for option in action.option_strings]
    hint = did_you_mean(word.split("=")[0], known, "--help lists what there is.")
    return f"Unknown option {word}. {hint}"
