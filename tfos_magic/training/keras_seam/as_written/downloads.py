"""``keras.utils.get_file`` on several ranks of a host: each URL is downloaded once, and every rank gets a copy."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from keras.src.utils import file_utils

from tfos_magic.training.keras_seam.seams import replaced


@contextmanager
def shared_downloads(folder: str, ranks: int, view: str) -> Iterator[None]:
    """While the block runs, let the first of the ``ranks`` of this host that wants a URL download it.

    ``folder`` is the same on all of them, and of this run alone. The others wait for that download, and each takes a
    copy; the last takes the file itself away. Of those that see the same disk, which is what ``view`` names, the first
    unpacks an archive for all.
    """
    os.makedirs(folder, mode=0o700, exist_ok=True)
    downloads, archives = _Once(folder), _Once(folder)
    retrieve, extract = file_utils.urlretrieve, file_utils.extract_archive

    def retrieve_once(url: str, filename: str, *args: Any, **kwargs: Any) -> Any:
        with downloads.turn(url) as kept:
            if not os.path.exists(kept):
                retrieve(url, f"{kept}.part", *args, **kwargs)
                os.replace(f"{kept}.part", kept)
            _copy(kept, filename)
            if _count(f"{kept}.taken") >= ranks:
                os.remove(kept)
        return filename, None

    def extract_once(file_path: str, path: str = ".", *args: Any, **kwargs: Any) -> Any:
        with archives.turn(f"{view}:{os.path.realpath(path)}") as done:
            if os.path.exists(done):
                return True
            if made := extract(file_path, path, *args, **kwargs):
                _count(done)
            return made

    with replaced(file_utils, "urlretrieve", retrieve_once), replaced(file_utils, "extract_archive", extract_once):
        yield


class _Once:
    """Things that each rank does equally often under the same name, the first one for all."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._turns: Counter[str] = Counter()

    @contextmanager
    def turn(self, name: str) -> Iterator[str]:
        """Be the only one of the host at this turn of ``name``; gives the path that tells ranks whether it is done."""
        self._turns[name] += 1
        key = hashlib.sha256(f"{name} {self._turns[name]}".encode()).hexdigest()[:24]
        path = os.path.join(self._folder, key)
        with open(f"{path}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield path


def _copy(source: str, target: str) -> None:
    part = f"{target}.{os.getpid()}.part"
    shutil.copyfile(source, part)
    os.replace(part, target)


def _count(path: str) -> int:
    """Note one more, and give how many that are."""
    with open(path, "a") as file:
        file.write(".")
    return os.path.getsize(path)
