"""Tracebacks as people read them: their own frames, and one line for what libraries did in between."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from pathlib import PurePath

CONTEXT_LINES = 2
_FRAME = re.compile(r'(?P<indent> {2,})File "(?P<path>[^"]+)", line (?P<line>\d+)')
_OURS = "tfos_magic"
_INSTALLED = ("site-packages", "dist-packages")
_GENERATED = "__autograph_generated_file"

_OF_A_GRAPH = (
    "Graph execution error:", "in user code:", "{{function_node", "[[{{node", "Error in user-defined function"
)  # fmt: skip
_NOISE = re.compile(
    r"""^Graph\ execution\ error:$ | ^in\ user\ code:$ | ^Traceback\ \(most\ recent\ call\ last\):$
    | ^Detected\ at\ node\ .*\ defined\ at\ \(most\ recent\ call\ last\):$
    | \{\{function_node\ [^}]*\}\}\ ? | \[\[\{\{node\ .*?\}\}\]\] | \[Op:[^\]]*\](\ name:\ *)? | \[\[IteratorGetNext\]\]
    | <stack\ traces\ unavailable>$ | Error\ in\ user-defined\ function\ passed\ to\ .*?\ with\ iterator:\ \S+:[ ]
    | \x1b\[[0-9;]*m""",
    re.VERBOSE,
)


def is_installed(path: str) -> bool:
    """Whether a file is that of an installed package."""
    return not set(_INSTALLED).isdisjoint(path.split(os.sep))  # of all modules that there are, at each run


def essence(message: str) -> str:
    """What a message says, without what TensorFlow puts around it: call stacks, names of nodes, colours."""
    if not any(mark in message for mark in _OF_A_GRAPH):
        return re.sub(r"\x1b\[[0-9;]*m", "", message)
    texts = [block[0] for block in _blocks(message.splitlines()) if not _FRAME.match(block[0])]
    lines = [_NOISE.sub("", text.strip()).strip() for text in texts]
    return "\n".join(dict.fromkeys(line for line in lines if line))


def lines_in_message(message: str, filename: str) -> list[int]:
    """The lines of ``filename`` in the call stacks that TensorFlow put into a message, from the outermost in."""
    matches = [match for line in message.splitlines() if (match := _FRAME.match(line))]
    return [int(match["line"]) for match in matches if match["path"] == filename]


def folded(text: str) -> str:
    """The text of a traceback in which frames of installed packages, and of this one, became a line that counts them.

    The frame that raised stays, unless it is this package's. What does not look like a traceback is left as it is.
    """
    lines: list[str] = []
    hidden: list[list[str]] = []
    for block in _blocks(text.splitlines()):
        if _library_of(block[0]):
            hidden.append(block)
            continue
        lines += [*_count(hidden, keep_last=_FRAME.match(block[0]) is None), *block]
        hidden = []
    return "\n".join([*lines, *_count(hidden, keep_last=True)])


def _count(frames: list[list[str]], *, keep_last: bool) -> list[str]:
    """One line for ``frames``, and the last of them where it is the one that raised."""
    keep_last = keep_last and bool(frames) and _library_of(frames[-1][0]) != _OURS
    shown = frames[-1] if keep_last else []
    counted = frames[:-1] if keep_last else frames
    if not counted:
        return shown
    libraries = dict.fromkeys(_library_of(frame[0]) for frame in counted)
    return [f"  [... {len(counted)} frame{'s' * (len(counted) > 1)} of {', '.join(libraries)}]", *shown]


def _blocks(lines: list[str]) -> Iterator[list[str]]:
    """A frame with the lines of code beneath it, or a line that belongs to none. Blank lines after frames go."""
    block: list[str] = []
    for line in lines:
        frame = _FRAME.match(block[0]) if block else None
        if frame and not line.strip():
            continue
        if frame and line.startswith(frame["indent"] + "  "):
            block.append(line)
            continue
        if block:
            yield block
        block = [line]
    if block:
        yield block


def _library_of(line: str) -> str:
    """The installed package that a frame's file is of; empty for the user's own, and for what is no frame."""
    match = _FRAME.match(line)
    parts = PurePath(match["path"]).parts if match else ()
    if _OURS in parts[:-1]:
        return _OURS
    if parts and parts[-1].startswith(_GENERATED):
        return "autograph"
    places = [place for place, part in enumerate(parts[:-1]) if part in _INSTALLED]
    return parts[places[-1] + 1].removesuffix(".py") if places else ""


def mark_lines(source: str, marked: Collection[int]) -> str:
    """The lines of ``source`` around those ``marked`` (from 1); empty where none is."""
    lines = source.splitlines()
    near = {n for line in marked if line for n in range(line - CONTEXT_LINES, line + CONTEXT_LINES + 1)}
    shown = sorted(n for n in near if 0 < n <= len(lines))
    texts = [f"{'-->' if n in marked else '   '} {n:3d} {lines[n - 1]}" for n in shown]
    gaps = [n > 1 and n - 1 not in near and n != shown[0] for n in shown]
    return "\n".join(f"    ...\n{text}" if gap else text for text, gap in zip(texts, gaps, strict=True))
