"""The house stands: an import never climbs from a lower floor to a higher one."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

FLOORS = {
    "tfos_magic.errors": 0,
    "tfos_magic.tracebacks": 0,
    "tfos_magic.quiet": 0,
    "tfos_magic.limits": 0,
    "tfos_magic.lean": 0,
    "tfos_magic.background": 0,
    "tfos_magic.this_host": 0,
    "tfos_magic.__version__": 0,
    "tfos_magic.storage": 1,
    "tfos_magic.transport": 1,
    "tfos_magic.columns": 1,
    "tfos_magic.values": 1,
    "tfos_magic.spark": 2,
    "tfos_magic.disk": 2,
    "tfos_magic.checkpoints": 2,
    "tfos_magic.tfrecord": 3,
    "tfos_magic.processes": 3,
    "tfos_magic.training": 3,
    "tfos_magic.files": 4,
    "tfos_magic.frames": 5,
    "tfos_magic.feed": 5,
    "tfos_magic.worker": 6,
    "tfos_magic.tensorboard": 7,
    "tfos_magic.cluster": 7,
    "tfos_magic.sweeps": 7,
    "tfos_magic.tracking": 8,
    "tfos_magic.notebook": 8,
    "tfos_magic.widgets": 9,
    "tfos_magic.ml": 9,
    "tfos_magic.tensorflowonspark": 9,
    "tfos_magic": 10,  # the front door hands out what the house has
}


SHOWING = {
    ("tfos_magic.cluster.runs.run", "tfos_magic.notebook.views.card.card_bundle"),
    ("tfos_magic.cluster.workers", "tfos_magic.notebook.views.tables.cluster_bundle"),
    ("tfos_magic.cluster.netbench.bench", "tfos_magic.notebook.netbench.bundle.bundle"),
    ("tfos_magic.notebook.subcommands", "tfos_magic.widgets.Compare"),
    ("tfos_magic.notebook.subcommands", "tfos_magic.widgets.Dashboard"),
}
"""What is displayed asks for its picture when that happens: the only way up."""

ROLES = {"callbacks", "card", "data", "hooks", "options", "picture", "reductions", "refusals", "views"}
"""Names that sub-folders of one room share, for each plays the same role there."""
SAME = {"netbench", "tensorflowonspark"}
"""One thing, which rooms have their part of, or a program knows by this name."""
PROCESSES = {"agent", "trainer"}
"""Names of processes, for what belongs to them in the room of the worker and in that of the feed."""

SEAM = "tfos_magic.training.keras_seam"
"""The room whose modules alone change Keras and TensorFlow."""

KERAS = ("keras", "tensorflow", "tf_keras")
SETTERS = {"setattr", "delattr", "object", "replaced"}
"""Functions that set what they are given, ``mock.patch.object`` among them."""
LOADERS = {"import_module", "__import__", "resolve_name"}
NAMED_AT_RUN_TIME = {
    "tfos_magic.cluster.runs.results",  # Keras, half-loaded by another thread
    "tfos_magic.lean",  # Keras, late
    "tfos_magic.ml",  # its own modules, late
    "tfos_magic.notebook.sweeping.views",  # the views, by name, those of widgets too
    "tfos_magic.notebook.views.choice",
    "tfos_magic.spark.worker_daemon",  # what tasks are known to need
    "tfos_magic.tensorflowonspark",  # its own modules, late
    "tfos_magic.training.keras_seam.seams",  # the table of Keras's places
    "tfos_magic.values.process_state",  # what the notebook has
    "tfos_magic.values.settings",
    "tfos_magic.widgets",  # its own modules, late
    "tfos_magic.worker.cell",  # what the cell imports
}
"""Modules that import by a name that they compute, and what that is."""


@dataclass(frozen=True)
class Import:
    """One import, wherever in a module it stands; ``target`` is absolute."""

    module: str
    line: int
    target: str

    def __str__(self) -> str:
        return f"{self.module}:{self.line} imports {self.target}"


@pytest.fixture(scope="module")
def imports(project: Path) -> list[Import]:
    return [
        found
        for module, path in _modules(project)
        for found in _imports(module, path.read_text(encoding="utf-8"), path.name == "__init__.py")
    ]


def test_every_module_stands_on_a_floor(project: Path) -> None:
    homeless = [module for module, _ in _modules(project) if module != "tfos_magic" and _floor(module) == 10]
    assert not homeless, f"give these a floor in FLOORS: {homeless}"


def test_no_import_climbs(imports: list[Import]) -> None:
    # A bare `import tfos_magic` is let through: it takes the package's place and version.
    inside = [found for found in imports if found.target.startswith("tfos_magic.")]
    climbing = [found for found in inside if _floor(found.target) > _floor(found.module)]
    others = [str(found) for found in climbing if (found.module, found.target) not in SHOWING]
    assert not others, "\n".join(others)
    assert {(found.module, found.target) for found in climbing} == SHOWING


def test_the_package_itself_is_asked_for_its_place_and_version_alone(project: Path) -> None:
    """Whatever else it hands out stands on higher floors."""
    asked: set[str] = set()
    for _, path in _modules(project):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        imported = [node for node in ast.walk(tree) if isinstance(node, ast.Import)]
        names = {a.asname or a.name for node in imported for a in node.names if a.name == "tfos_magic"}
        asked |= {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in names
        }
    assert asked <= {"__file__", "__version__", "__path__"}


def test_what_is_imported_by_a_computed_name_is_known(project: Path) -> None:
    computing = {
        module
        for module, path in _modules(project)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and _name_of(node.func) in LOADERS and not _texts(node)
    }
    assert computing == NAMED_AT_RUN_TIME


def test_no_import_comes_round_to_where_it_began(project: Path, imports: list[Import]) -> None:
    """Those within functions and for types alone count as well. ``tfos_magic`` itself hands out what the house has."""
    modules = {module for module, _ in _modules(project)} - {"tfos_magic"}
    graph: dict[str, set[str]] = {module: set() for module in modules}
    for found in (found for found in imports if (found.module, found.target) not in SHOWING):
        target = next((name for name in _and_outer(found.target) if name in modules), "")
        if target and found.module in modules and target != found.module:
            graph[found.module].add(target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


def test_rooms_and_modules_can_be_taken_in(project: Path) -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for _, path in _modules(project)}
    assert not {str(path): length for path, length in lengths.items() if length > 300}
    rooms = Counter(path.parent for path in lengths)
    assert not {str(room): modules for room, modules in rooms.items() if modules > 15}


def test_a_name_is_one_module_or_one_role_within_a_room(project: Path) -> None:
    """``hooks`` of Keras 3 and of ``tf_keras`` are one role; ``session`` of Spark and of a rank were two things."""
    rooms: dict[str, list[str]] = {}
    for module, _ in _modules(project):
        *outer, name = module.split(".")
        if name not in outer[-1:] and outer:  # a room's main module has its name
            rooms.setdefault(name, []).append(module.split(".")[1])
    assert all(set(rooms[name]) <= {"worker", "feed"} for name in PROCESSES)
    twice = {name: found for name, found in rooms.items() if len(found) > 1 and name not in PROCESSES}
    assert {name: found for name, found in twice.items() if name not in ROLES | SAME} == {}
    assert all(len(set(twice[name])) == 1 for name in ROLES)


def test_keras_and_tensorflow_are_changed_in_one_room(project: Path, imports: list[Import]) -> None:
    """Others may set what is their own with ``replaced``, and a trainer's start asks what is missing."""
    changing = {f"{SEAM}.seams", *(f"{SEAM}.seams.{name}" for name in ("replace", "wrap", "replace_item"))}
    changing |= {f"{SEAM}.random_numbers.install_around"}
    others = {found.module for found in imports if found.target in changing and not found.module.startswith(f"{SEAM}.")}
    assert others - {SEAM} == {
        "tfos_magic.training.firststep.noise",  # which gives the room what stands around random numbers
        "tfos_magic.worker.host",  # which checks the table
    }
    texts = {module: path.read_text(encoding="utf-8") for module, path in _modules(project)}
    setting = {module: lines for module, text in texts.items() if (lines := _set_in_keras(text))}
    assert not {module: lines for module, lines in setting.items() if ".keras_seam" not in module}


@pytest.mark.parametrize(
    "source",
    [
        "import keras\nkeras.layers.Layer.add_loss = None",
        "from keras.src.utils import file_utils\nfile_utils.urlretrieve, other = None, None",
        "import tensorflow as tf\nsetattr(tf.nn, 'relu', None)",
        "def f():\n    from keras.src import losses as made\n    made.loss.ALL += (1,)",
        "import tf_keras\ndel tf_keras.Model.fit",
        "import keras\nlayer = keras.layers.Layer\nlayer.add_loss = None",
        "import keras\nfor kind in (keras.layers.Dense, keras.Model):\n    kind.call = None",
        "from keras.src import losses\nlosses.ALL['x'] = None",
        "import keras\nowner: object = keras.Model\nowner.compile = None",
        "import keras\nmodel, layer = keras.Model, keras.layers.Layer\nmodel.compile = None",
        "from keras import Model\nother = Model\nother.fit = None",
        "import keras\nfrom unittest import mock\nmock.patch.object(keras.Model, 'fit', None)",
        "import keras\nwith replaced(keras.Model, 'fit', None):\n    pass",
        "from importlib import import_module\nimport_module('keras.src.x').Trainer.fit = None",
    ],
)
def test_a_change_of_keras_is_seen_however_it_is_written(source: str) -> None:
    line = len(source.splitlines()) - source.endswith("    pass")
    assert _set_in_keras(source) == [line]
    assert not _set_in_keras("import keras\nmodel = keras.Model()\nmodel.fit = None")


def test_nothing_imports_the_top_folder_by_its_bare_name(imports: list[Import]) -> None:
    assert not [str(found) for found in imports if found.target.partition(".")[0] == "widgets"]


@pytest.mark.parametrize(
    "room", ["tfos_magic.training", "tfos_magic.worker", "tfos_magic.feed", "tfos_magic.columns", "tfos_magic.frames"]
)
def test_workers_know_nothing_of_notebooks(imports: list[Import], room: str) -> None:
    notebook = {"IPython", "ipykernel", "ipywidgets", "anywidget", "traitlets"}
    own = [found for found in imports if found.module.startswith(room)]
    assert not [str(found) for found in own if found.target.partition(".")[0] in notebook]


@pytest.mark.parametrize(
    ("module", "source", "target"),
    [
        ("tfos_magic.worker.agent", "import tfos_magic.cluster.runs.state", "tfos_magic.cluster.runs.state"),
        (
            "tfos_magic.worker.agent",
            "def f():\n    from tfos_magic.cluster.runs import state",
            "tfos_magic.cluster.runs.state",
        ),
        (
            "tfos_magic.worker.agent",
            "from ..cluster.runs.state import RunState",
            "tfos_magic.cluster.runs.state.RunState",
        ),
        ("tfos_magic.errors", "from tfos_magic import notebook", "tfos_magic.notebook"),
        ("tfos_magic.notebook.view", "from tfos_magic import TFCluster", "tfos_magic.TFCluster"),
        ("tfos_magic.cluster.runs.state", "import_module('tfos_magic.widgets.panel')", "tfos_magic.widgets.panel"),
        ("tfos_magic.worker", "__import__(name='tfos_magic.widgets.panel')", "tfos_magic.widgets.panel"),
        ("tfos_magic.worker", "import_module('.notebook.names', 'tfos_magic')", "tfos_magic.notebook.names"),
        (
            "tfos_magic.worker.cell",
            "resolve_name('tfos_magic.notebook.names:NAMES')",
            "tfos_magic.notebook.names.NAMES",
        ),
    ],
)
def test_a_climbing_import_is_seen_however_it_is_written(module: str, source: str, target: str) -> None:
    (found,) = _imports(module, source)
    assert found.target == target
    assert _floor(found.target) > _floor(module)


def test_a_package_counts_its_dots_from_itself() -> None:
    for module, source, target in (
        ("tfos_magic.worker.relay", "from ...cluster.runs import state", "tfos_magic.cluster.runs.state"),
        ("tfos_magic.worker", "from ..notebook.magics import X", "tfos_magic.notebook.magics.X"),
        ("tfos_magic.training", "from .run import Run", "tfos_magic.training.run.Run"),
    ):
        assert [found.target for found in _imports(module, source, is_package=True)] == [target]


def _modules(project: Path) -> Iterator[tuple[str, Path]]:
    """All modules of the package with the names they have once installed."""
    for name, folder in (("tfos_magic", project / "tfos_magic"), ("tfos_magic.widgets", project / "widgets")):
        for path in sorted(folder.rglob("*.py")):
            parts = [part for part in path.relative_to(folder).with_suffix("").parts if part != "__init__"]
            yield ".".join([name, *parts]), path


def _and_outer(module: str) -> Iterator[str]:
    while module:
        yield module
        module = module.rpartition(".")[0]


def _floor(module: str) -> int:
    while module not in FLOORS:
        module = module.rpartition(".")[0]
    return FLOORS[module]


def _imports(module: str, source: str, is_package: bool = False) -> Iterator[Import]:
    for node in ast.walk(ast.parse(source)):
        for target in _targets(module if not is_package else f"{module}.__init__", node):
            yield Import(module, getattr(node, "lineno", 0), target)


def _targets(module: str, node: ast.AST) -> list[str]:
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module=source, names=names, level=level):
            base = [*module.split(".")[:-level], *([source] if source else [])] if level else [source or ""]
            return [".".join([*base, alias.name]) for alias in names]
        case ast.Call(func=function) if _name_of(function) in LOADERS and (texts := _texts(node)):
            name, *anchor = texts
            return ["".join([*anchor, name] if name.startswith(".") else [name]).replace(":", ".")]
    return []


def _name_of(node: ast.expr) -> str:
    """The last name of what is called."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _texts(call: ast.Call) -> list[str]:
    """What a call is given as text, where all that it is given is."""
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    texts = [str(each.value) for each in given if isinstance(each, ast.Constant)]
    return texts if len(texts) == len(given) else []


def _set_in_keras(source: str) -> list[int]:
    """The lines at which a module sets or deletes what is Keras's or TensorFlow's, by whatever name it has that."""
    tree, lines = ast.parse(source), []
    theirs = {
        alias.asname or alias.name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
        if (getattr(node, "module", None) or alias.name).partition(".")[0] in KERAS
    }
    known = -1
    while known != len(theirs):
        known = len(theirs)
        theirs |= {name for node in ast.walk(tree) for name in _called_by(node, theirs)}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, (ast.Store, ast.Del)):
            lines += [node.lineno] if _is_of(node.value, theirs) else []
        if isinstance(node, ast.Call) and _name_of(node.func) in SETTERS and node.args:
            lines += [node.lineno] if any(_is_of(given, theirs) for given in node.args[:2]) else []
    return lines


def _called_by(node: ast.AST, theirs: set[str]) -> set[str]:
    """The names that an assignment or a loop gives to attributes of what is theirs."""
    pairs: list[tuple[ast.expr, ast.expr]] = []
    if isinstance(node, ast.Assign):
        pairs = [(target, node.value) for target in node.targets]
    elif isinstance(node, (ast.NamedExpr, ast.AnnAssign)) and node.value is not None:
        pairs = [(node.target, node.value)]
    elif isinstance(node, ast.For) and isinstance(node.iter, (ast.Tuple, ast.List)):
        pairs = [(node.target, each) for each in node.iter.elts]
    for target, value in list(pairs):
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            pairs += zip(target.elts, value.elts, strict=False)
    kinds = (ast.Attribute, ast.Name)
    return {t.id for t, v in pairs if isinstance(t, ast.Name) and isinstance(v, kinds) and _is_of(v, theirs)}


def _is_of(node: ast.expr, theirs: set[str]) -> bool:
    """Whether it is one of ``theirs``, or an attribute of one; or of a module that is imported by a text."""
    root: ast.expr = node
    while isinstance(root, (ast.Attribute, ast.Subscript)):
        root = root.value
    if isinstance(root, ast.Call) and _name_of(root.func) in LOADERS:
        return any(text.partition(".")[0] in KERAS for text in _texts(root))
    return isinstance(root, ast.Name) and root.id in theirs
