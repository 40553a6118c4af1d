"""What ``%load_ext tfos_magic`` does, and what unloading takes away again."""

from __future__ import annotations

from typing import Any

from tfos_magic.disk.module_states import watch
from tfos_magic.notebook.completion import IDENTIFIER, completer
from tfos_magic.notebook.magics import TFOSMagics


def load(shell: Any) -> None:
    """Register the magics in ``shell``, and their defaults with ``%config``."""
    magics = TFOSMagics(shell)
    shell.register_magics(magics)
    named = ("%%tfos_train", "%%tfos_run", "%%tfos_sweep", "%%tfos_map", "%tfos_predict")
    parsers = {name: getattr(TFOSMagics, name.lstrip("%")).parser for name in named}
    shell.Completer.custom_matchers.append(completer(shell.user_ns, parsers, magics.runtime.known))
    if magics.settings not in shell.configurables:
        shell.configurables.append(magics.settings)
    shell.input_transformers_cleanup.append(help_needs_no_body)
    magics.runtime.add_formats()
    shell.events.register("post_run_cell", magics.runtime.note_session)
    magics.listener = watch()


def unload(shell: Any) -> None:
    """End what the magics started and take them away again."""
    magics = shell.magics_manager.registry.pop("TFOSMagics", None)
    if magics is None:
        return
    if magics.runtime.close():
        print("The extension was unloaded: its cluster has ended.")
    shell.events.unregister("post_run_cell", magics.runtime.note_session)
    magics.listener.end()
    shell.configurables.remove(magics.settings)
    matchers = shell.Completer.custom_matchers
    matchers[:] = [m for m in matchers if getattr(m, "matcher_identifier", "") != IDENTIFIER]
    if help_needs_no_body in shell.input_transformers_cleanup:
        shell.input_transformers_cleanup.remove(help_needs_no_body)
    for kind, names in TFOSMagics.magics.items():
        for name in names:
            shell.magics_manager.magics[kind].pop(name, None)


def help_needs_no_body(lines: list[str]) -> list[str]:
    """``%%tfos_train --help`` alone in a cell as the line magic, for IPython takes no cell magic without a body."""
    first, rest = (lines[0].split(), lines[1:]) if lines else ([], [])
    if first[:1] and first[0].startswith("%%tfos_") and "--help" in first and not "".join(rest).strip():
        return [lines[0].lstrip()[1:], *rest]
    return lines
