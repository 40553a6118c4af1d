"""The parts of the documentation's reference that are written from the code: options, settings, types, public names."""

from __future__ import annotations

import ast
import inspect
import re
from argparse import Action
from collections.abc import Callable, Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

from tfos_magic.columns import schema_plan
from tfos_magic.notebook.config import TFOS, setting_of
from tfos_magic.notebook.magics import TFOSMagics
from tfos_magic.notebook.options import CELL_MAGICS, default_of
from tfos_magic.notebook.subcommands import COMMANDS
from tfos_magic.transport.messages import StrategyOptions

ROOT = Path(__file__).resolve().parent.parent
MAGICS = ("tfos_train", "tfos_run", "tfos_sweep", "tfos_map", "tfos_predict")
_SAVED = "objects_to_save, facts_to_save, take_saved, model_class"
INTERNAL = {
    "TFCluster": "grow, check_group",
    "Run": "start, execute, request, runs, busy, mute, update, output, show",
    "MapRun": "start, busy, mute, await_end",
    "Missing": "columns, fill_of, pad_of",
    "Selection": "targets, role_of, features_of",
    "ClusterStatus": "with_busy",
    "Sweep": "start, count, take_end",
    "Trial": "answer, update, end, changes",
    "KerasEstimator": f"training, {_SAVED}",
    "KerasModel": _SAVED,
    "KerasClassifier": _SAVED,
    "KerasRegressor": _SAVED,
    "DataError": "of",
    "WorkerLost": "without_restarts",
    "WorkerError": "told",
}
"""What other rooms call of a class, and its users do not."""


def magics() -> str:
    """A section for each magic and each command of ``%tfos``, with a table of its options."""
    about = dict(re.findall(r"^(\w+) {2,}(.*)$", inspect.getdoc(TFOSMagics.tfos) or "", re.MULTILINE))
    shown: dict[str, str] = {}
    parts = [_magic(f"%tfos {name}", COMMANDS[name].parser, _sentence(about[name]), shown) for name in COMMANDS]
    for name in MAGICS:
        parser = getattr(TFOSMagics, name).parser
        sign = "%%" if name in (*CELL_MAGICS, "tfos_map") else "%"
        parts.append(_magic(f"{sign}{name}", parser, _prose(inspect.cleandoc(parser.description)), shown))
    return "\n".join(parts)


def _magic(title: str, parser: Any, about: str, shown: dict[str, str]) -> str:
    """The section of a magic. ``shown`` says for each option that stands already at which magic it does."""
    groups = [_group(_head(each.title), each._group_actions, title, shown) for each in parser._action_groups]
    return "\n".join([f"## `{title}`\n\n{about}\n", *filter(None, groups)])


def _group(head: str, actions: Iterable[Action], title: str, shown: dict[str, str]) -> str:
    rows = {_row(action): action for action in actions if action.dest != "help"}
    again = [row for row in rows if head + row in shown]
    names = ", ".join(_names(rows.pop(row)) for row in again) if len(again) > 2 else ""
    table = _table(["| option | default | meaning |", "|---|---|---|", *rows]) if rows else ""
    parts = [f"*{head}*", table.rstrip()]
    if names:
        first = shown[head + again[0]]
        parts.append(f"{names}{' also' if rows else ''}: as for [`{first}`](#{first.strip('%').replace(' ', '-')}).")
    shown.update(dict.fromkeys((head + row for row in rows), title))
    return "\n\n".join(filter(None, parts)) + "\n" if rows or names else ""


def _head(title: str | None) -> str:
    plain = {"positional arguments": "arguments", "options": "options", None: "options"}.get(title, title)
    return f"{plain[:1].upper()}{plain[1:]}"


def _table(rows: Iterable[str]) -> str:
    """The rows as a table whose code does not break within a name."""
    return ":::{container} options\n" + "\n".join(rows) + "\n:::\n"


def _row(action: Action) -> str:
    value = "" if action.nargs == 0 else f" `{_value_of(action)}`"
    return f"| {_names(action)}{value} | {_default_of(action)} | {_cell(action.help or '')} |".replace("  ", " ")


def _names(action: Action) -> str:
    return ", ".join(f"`{name}`" for name in action.option_strings)


def _value_of(action: Action) -> str:
    if action.choices:
        return "{" + ",".join(map(str, action.choices)) + "}"
    name = str(action.metavar or action.dest.upper())
    return f"[{name}]" if action.nargs == "?" and action.option_strings else name


def _default_of(action: Action) -> str:
    setting = setting_of(action.option_strings)
    if setting and action.default is None and action.nargs != 0:
        return f"{_code(TFOS.class_traits()[setting].default_value)} ([`TFOS.{setting}`](settings.md))"
    default = default_of(action)
    return "" if default in (None, "", 0, False) or action.nargs == 0 else _code(default)


def _code(value: Any) -> str:
    return "empty" if value == "" else f"`{value}`"


def settings() -> str:
    """A table of the configuration traits."""
    rows = ["| setting | default | values | applies | meaning |", "|---|---|---|---|---|"]
    for name, trait in TFOS.class_traits(config=True).items():
        applies = "when a cluster starts" if trait.metadata.get("at_start") else "with the next cell"
        default = _code(trait.default_value)
        rows.append(f"| `TFOS.{name}` | {default} | {_values_of(trait)} | {applies} | {_cell(trait.help)} |")
    return _table(rows)


def _values_of(trait: Any) -> str:
    if kinds := getattr(trait, "trait_types", None):
        return " or ".join(map(_values_of, kinds))
    if choices := getattr(trait, "values", None):
        return ", ".join(map(_code, choices))
    kind = {"Unicode": "text", "Bool": "`True`, `False`", "Int": "whole number", "Float": "number"}[
        type(trait).__name__
    ]
    least = getattr(trait, "min", None)
    return f"{kind} from {least:g}" if least not in (None, float("-inf")) else kind


def strategies() -> str:
    """A table of the options of the strategies."""
    rows = ["| option | in `options=` | strategies | default | meaning |", "|---|---|---|---|---|"]
    for each in fields(StrategyOptions):
        default = "" if each.default is None else _code(each.default)
        owners = ", ".join(f"`{name}`" for name in each.metadata["strategies"])
        meaning = _cell(_sentence(each.metadata["help"]))
        rows.append(f"| `--{each.name.replace('_', '-')}` | `{each.name}` | {owners} | {default} | {meaning} |")
    return _table(rows)


def types() -> str:
    """A table of what each type of Spark SQL becomes, by its name in schemas."""
    rows = ["| Spark type | dtype in the cell | unit |", "|---|---|---|"]
    rows += [f"| `{name}` | `{dtype}` | |" for name, dtype in schema_plan.NUMBERS.items()]
    rows += ["| `decimal` | `float64` | |"]
    rows += [f"| `{name}` | `int64` | {unit} |" for name, unit in schema_plan.UNITS.items()]
    rows += [f"| `{name}` | `tf.string` | |" for name in schema_plan.TEXT]
    return "\n".join(rows) + "\n"


def params(stage: str) -> str:
    """A table of the parameters of a stage of ``tfos_magic.ml``."""
    from tfos_magic import ml

    made = getattr(ml, stage)()
    rows = ["| parameter | default | meaning |", "|---|---|---|"]
    for param in made.params:
        default = f"`{made.getOrDefault(param)}`" if made.hasDefault(param) else ""
        rows.append(f"| `{param.name}` | {default} | {_cell(_sentence(param.doc))} |")
    return "\n".join(rows) + "\n"


def api(*names: str) -> str:
    """The entries of public names, such as ``tfos_magic.TFCluster``, or of all of a module: ``tfos_magic.errors.*``."""
    every = [each for name in names for each in (public(name[:-2]) if name.endswith(".*") else [name])]
    return "```{eval-rst}\n" + "\n".join(map(_directive, every)) + "```\n"


def public(module: str) -> list[str]:
    """The public names of a module, without importing it: those of its ``__all__``, else its classes."""
    folder = ROOT / "widgets" if module == "tfos_magic.widgets" else ROOT.joinpath(*module.split("."))
    path = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return [f"{module}.{name}" for name in ast.literal_eval(node.value)]
    return [f"{module}.{node.name}" for node in tree.body if isinstance(node, ast.ClassDef)]


def _directive(name: str) -> str:
    outer, _, last = name.rpartition(".")
    if not last[0].isupper():
        return f".. {'automethod' if outer.rpartition('.')[2][0].isupper() else 'autofunction'}:: {name}\n"
    kind = "autoexception" if ".errors." in name else "autoclass"
    return f".. {kind}:: {name}\n   :members:\n   :exclude-members: {INTERNAL.get(last, '')}\n"


def _prose(text: str) -> str:
    """A docstring as Markdown: lines that are commands become a block of code."""
    paragraphs = text.split("\n\n")
    return "\n\n".join(f"```ipython3\n{each}\n```" if each.startswith("%") else _quoted(each) for each in paragraphs)


def _quoted(text: str) -> str:
    return re.sub(r"(?<![\w`])((?:%{1,2}tfos\w*|--[a-z-]+|-[a-z])\b(?:=\S+)?)", r"`\1`", text)


def _sentence(text: str) -> str:
    """Help as a sentence of its own."""
    return text[0].upper() + text[1:].rstrip(".") + "."


def _cell(text: str) -> str:
    return _quoted(" ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*"))


PARTS: dict[str, Callable[..., str]] = {
    each.__name__: each for each in (magics, settings, strategies, types, params, api)
}
"""What a page may name in ``<!-- generate PART … -->``."""
