"""Linux mounts that this process alone sees."""

from __future__ import annotations

import ctypes
import os
import sys

_CLONE_NEWNS = 0x00020000
_MS_BIND, _MS_REC, _MS_SLAVE = 0x1000, 0x4000, 0x80000
_MNT_DETACH = 2


def separate() -> bool:
    """Give this process, and what it starts, mounts of its own; False where the system does not allow that.

    It must be called before there are threads: each has the mounts of the one that made it. Only who may mount without
    a user namespace is let in, for from within one the spools of agents could not be read.
    """
    if sys.platform != "linux":
        return False
    try:
        _checked(_libc().unshare(_CLONE_NEWNS))
        _mount("", "/", "", _MS_REC | _MS_SLAVE, "")
    except (OSError, AttributeError):
        return False
    return True


def overlay(lower: str, upper: str, work: str, target: str) -> None:
    """Show at ``target`` the folder ``lower``, with what is written kept in ``upper``. Raises ``OSError``."""
    _mount("overlay", target, "overlay", 0, f"lowerdir={lower},upperdir={upper},workdir={work}")


def memory(target: str, size: int) -> None:
    """Put an empty folder in memory, of at most ``size`` bytes, at ``target``. Raises ``OSError``."""
    _mount("tmpfs", target, "tmpfs", 0, f"size={size},mode=700")


def bind(source: str, target: str) -> None:
    """Show the folder ``source`` at ``target``, with what is mounted below it. Raises ``OSError``."""
    _mount(source, target, "", _MS_BIND | _MS_REC, "")


def detach(target: str) -> None:
    """Take away what was mounted at ``target``, and below it; files that are open stay so. Raises ``OSError``."""
    _checked(_libc().umount2(os.fsencode(target), _MNT_DETACH))


def _mount(source: str, target: str, kind: str, flags: int, options: str) -> None:
    texts = [os.fsencode(text) or None for text in (source, target, kind)]
    _checked(_libc().mount(*texts, ctypes.c_ulong(flags), os.fsencode(options) or None))


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _checked(result: int) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
