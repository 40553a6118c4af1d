"""A pickler to which nothing is too deep: objects of Keras are made first, and get their attributes one after another.

What it writes is a row of pickles that share one memo: the root, then each object that was made empty with its state,
and last what is to be known of all of them. So a model of a thousand layers, each of which knows the next, costs no
recursion, and what refers to objects by their identity is made anew when all of them are there.
"""

from __future__ import annotations

import ast
import linecache
import pickle
import sys
import threading
from collections.abc import Callable, Set
from contextlib import suppress
from functools import cached_property, lru_cache
from pathlib import Path
from types import CellType, CodeType, FunctionType
from typing import Any, BinaryIO

import cloudpickle
import numpy as np
import numpy.typing as npt

from tfos_magic.values import classes, model_archives, objects, originals, tensors
from tfos_magic.values.unpickler import SET_ANEW
from tfos_magic.values.unsent import Unsent

_LOCKS = {type(make()): make for make in (threading.Lock, threading.RLock)}
_CACHED = type(lru_cache(len))
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_CONTAINERS = (list, dict, set, bytearray, CellType)


class Pickler(cloudpickle.Pickler):
    """Writes values with :meth:`dump_all`; gives the memory of arrays to ``buffers``, where there is such a function.

    A ``lenient`` one puts :class:`Unsent` in the place of what cannot be pickled, and keeps it in ``unsent``. A
    ``plain`` one writes for readers without TensorFlow: arrays for tensors and variables. ``arrays`` holds those of
    variables by id; several picklers may share it, so that they give the same memory. ``set_anew`` are names of the
    main module that have got other values than it began with; of ``feeds``, others, the reader has the DataFrame, which
    functions find there.
    """

    def __init__(
        self,
        file: BinaryIO,
        buffers: Callable[[pickle.PickleBuffer], None] | None = None,
        *,
        lenient: bool = False,
        plain: bool = False,
        arrays: dict[int, npt.NDArray[Any]] | None = None,
        set_anew: Set[str] = frozenset(),
        feeds: Set[str] = frozenset(),
    ) -> None:
        super().__init__(file, protocol=5, buffer_callback=buffers)
        # What cloudpickle makes the globals of functions from, by the id of those that they have.
        main = sys.modules["__main__"].__dict__
        self.globals_ref[id(main)] = {"__name__": "__main__", SET_ANEW: frozenset(set_anew)}
        self.unsent: list[Any] = []
        self._lenient, self._plain = lenient, plain
        self._feeds = feeds - set_anew
        self._arrays = {} if arrays is None else arrays
        self._sources: dict[str, str] = {}
        self._registered: dict[str, Any] = {}
        self._variables: dict[str, Any] = {}
        self._empty: list[Any] = []
        self._seen: set[int] = set()
        self._cells: dict[int, tuple[Any, ...]] = {}

    def dump_all(self, root: Any) -> None:
        """Write ``root`` and all that it reaches. Raises what a value raises that cannot be pickled."""
        self.dump(root)
        for obj in self._empty:  # which grows meanwhile
            self.dump((obj, self.state_of(obj)))
        self.dump(None)
        self.dump((self._sources, self._registered, self._variables))

    def state_of(self, obj: Any) -> Any:
        """What an object of Keras is given when it is read."""
        return objects.state_of(obj)

    @property
    def holds_keras(self) -> bool:
        """Whether objects of Keras were written, which the same version alone can read."""
        return bool(self._empty)

    def shares(self, roots: set[int]) -> set[int]:
        """The ids of what was written and has a state that others may see: objects of Keras, variables, arrays, what
        the user's classes made, lists, dicts and sets, and what of ``roots`` is in it."""
        known = {id(obj) for obj in (*self._empty, *self._variables.values())}
        written = {key for key, (_, obj) in self.memo.copy().items() if key in roots or type(obj) in _CONTAINERS}
        return known | self._seen | written

    def reducer_override(self, obj: Any) -> Any:
        try:
            return self._reduce(obj)
        except Exception:  # any object of the user's may refuse in its own way
            if not self._lenient:
                raise
            return self._without(obj)

    def _reduce(self, obj: Any) -> Any:
        if isinstance(obj, (FunctionType, type)):
            self._note_definition(obj)
            reduced = super().reducer_override(obj)
            if isinstance(obj, FunctionType) and reduced is not NotImplemented:
                self._leave_feeds(reduced)
                _add_annotations(obj, reduced[2][1]["__globals__"])
                reduced = self._with_cells(obj, *reduced)
            return reduced
        if isinstance(obj, CodeType):
            return _code, (*self.dispatch_table[CodeType](obj), obj.co_filename)
        if isinstance(obj, CellType) and id(obj) in self._cells:
            return CellType, ()
        if make := _LOCKS.get(type(obj)):  # what is held here is free there
            return make, ()
        if isinstance(obj, _CACHED) and obj.__module__ == "__main__":
            return _cached, (obj.__wrapped__, obj.cache_parameters())
        if type(obj) is cached_property:  # which has a lock of its own until Python 3.12
            return cached_property, (obj.func,), {"attrname": obj.attrname}
        if isinstance(obj, np.ndarray) or type(obj).__module__ == "__main__":
            self._seen.add(id(obj))
            if classes.has_slots(type(obj)):
                return classes.reduce_slotted(obj)
        if tensors.is_variable(obj):
            return self._reduce_variable(obj)
        if self._plain and objects.is_variable(obj):
            return self._reduce_variable(obj.value)
        of_keras = objects.is_saveable(obj) or objects.is_of_a_model(obj) or tensors.is_checkpoint(obj)
        if tensors.is_of_a_graph(obj) or (of_keras and self._plain):  # layers keep tensors of a step that was traced
            return self._without(obj)
        if of_keras:
            self._empty.append(obj)
            return objects.empty, (type(obj), objects.version(), originals.token(obj))
        if objects.is_image_iterator(obj):
            return objects.reduce_image_iterator(obj)
        for reduced in (objects.reduce(obj), tensors.reduce(obj, self._plain), model_archives.reduce_keras_2(obj)):
            if reduced is not NotImplemented:
                return reduced
        reduced = super().reducer_override(obj)
        if reduced is not NotImplemented or not self._lenient:
            return reduced
        reducer = self.dispatch_table.get(type(obj))
        return reducer(obj) if reducer else obj.__reduce_ex__(5)

    def _leave_feeds(self, reduced: Any) -> None:
        """Let a function be read without the datasets that stand for the reader's DataFrames here."""
        named = reduced[2][1]["__globals__"]
        for name in self._feeds & named.keys():
            named[name] = Unsent(tensors.kind_of(named[name]))

    def _with_cells(self, function: Any, make: Any, made_of: tuple[Any, ...], state: Any, *rest: Any) -> Any:
        """Let a function share the variables of its closure with others: they are made empty, and filled by each."""
        if (cells := function.__closure__) is None:
            return make, made_of, state, *rest
        filled = tuple(CellType(*_contents(cell)) for cell in cells)
        self._cells.update({id(cell): (cell, filled) for cell in cells})
        state[1]["__closure__"] = filled
        return make, (*made_of[:-1], cells), state, *rest

    def _reduce_variable(self, variable: Any) -> Any:
        array = self._arrays.get(id(variable))
        if array is None:
            array = self._arrays[id(variable)] = tensors.array_of(variable)
        if self._plain:
            return array.__reduce_ex__(5)
        self._variables[variable._unique_id] = variable
        return tensors.variable, (array, tensors.options_of(variable), originals.token(variable))

    def _without(self, obj: Any) -> Any:
        self.unsent.append(obj)
        return Unsent, (tensors.kind_of(obj),)

    def _note_definition(self, obj: Any) -> None:
        """Keep the text of a function of a notebook, and the name that Keras knows a definition by."""
        if obj.__module__ == "__main__" and (name := objects.registered_name(obj)):
            self._registered[name] = obj
        if isinstance(obj, FunctionType):
            filename = obj.__code__.co_filename
            if filename not in self._sources and (text := _text_of_cell(filename)):
                self._sources[filename] = text


def _add_annotations(function: FunctionType, named: dict[str, Any]) -> None:
    """Let a notebook's function have what its text names in annotations alone: AutoGraph makes it anew of its text."""
    filename = function.__code__.co_filename
    if not function.__annotations__ or not _text_of_cell(filename):
        return
    for name in _annotating(filename, function.__code__.co_firstlineno):
        if name in function.__globals__:
            named.setdefault(name, function.__globals__[name])


def _annotating(filename: str, line: int) -> set[str]:
    """The names in the annotations of the function whose text, with decorators, begins at a line."""
    with suppress(SyntaxError):
        functions = (n for n in ast.walk(ast.parse(_text_of_cell(filename))) if isinstance(n, _FUNCTIONS))
        for node in functions:
            if min(part.lineno for part in (node, *node.decorator_list)) == line:
                annotations = [node.returns, *(a.annotation for a in ast.walk(node.args) if isinstance(a, ast.arg))]
                parts = (part for each in annotations if each is not None for part in ast.walk(each))
                return {part.id for part in parts if isinstance(part, ast.Name)}
    return set()


def _contents(cell: CellType) -> tuple[Any, ...]:
    """What a cell holds, if anything."""
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()


def _code(make: Callable[..., CodeType], made_of: tuple[Any, ...], filename: str) -> CodeType:
    """Code by whose file its text is found, for tracebacks and AutoGraph; cloudpickle 3.1.3 forgets that."""
    return make(*made_of).replace(co_filename=filename)


def _cached(function: Any, options: dict[str, Any]) -> Any:
    return lru_cache(**options)(function)


def _text_of_cell(filename: str) -> str:
    """Empty for what has a file of its own."""
    return "" if Path(filename).exists() else "".join(linecache.getlines(filename))
