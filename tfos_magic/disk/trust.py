"""Whether code may be imported from a directory: not from one that somebody else could have put there, or writes to."""

from __future__ import annotations

import os
import stat


def is_trusted(directory: str) -> bool:
    """Whether ``directory`` is there, and nobody but its owner chose what it holds.

    Nobody but root and this user may own what lies in a directory that everybody writes to, such as ``/tmp``, on the
    way to it, and no group of others may write to that; and not everybody may write to itself. So ``ssh`` looks at its
    files. Whose a directory in other places is does not matter: who put it there was let to. Links are looked at as
    well as what they lead to.
    """
    try:
        names = os.path.abspath(directory), os.path.realpath(directory)
        return os.path.isdir(directory) and all(_is_closed(name) for name in names)
    except OSError:
        return False


def _is_closed(path: str) -> bool:
    """Whether a directory, and each above it, is closed to others or holds what is root's or this user's alone."""
    if _is_open(path):
        return False
    while (above := os.path.dirname(path)) != path:
        if _is_open(above) and not _is_own(os.lstat(path)):
            return False
        path = above
    return True


def _is_own(status: os.stat_result) -> bool:
    """Whether it is root's or this user's, and writable to no group but its own."""
    others = bool(status.st_mode & stat.S_IWGRP) and not stat.S_ISLNK(status.st_mode)
    return status.st_uid in (0, os.geteuid()) and not (others and status.st_gid not in (os.getegid(), *os.getgroups()))


def _is_open(path: str) -> bool:
    return bool(os.stat(path).st_mode & stat.S_IWOTH)
