"""Every place of Keras, TensorFlow and ``tf_keras`` that a run changes while it is under way, and why; of NumPy and
Python those that go with them (the view of a worker's disk has its own, in ``disk/``).

:func:`replace` changes no other, and puts back exactly what was there. A trainer looks at its start whether all are
there (those of ``tf_keras`` when a cell imports it): another version of Keras is one error, not a run that goes wrong.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import wraps
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any

TESTED = "Keras 3.12 to 3.15, tf_keras 2.21 and TensorFlow 2.21"


@dataclass(frozen=True)
class Seam:
    """Names of ``owner``, which is ``module`` or ``module:Class``, or one of several, as versions call it. Those
    ``optional`` are changed where they are, those ``inherited`` are in what the class inherits from."""

    owner: str | tuple[str, ...]
    names: tuple[str, ...]
    why: str
    optional: bool = False
    inherited: bool = False

    @property
    def missing(self) -> list[str]:
        """The addresses that are not there."""
        try:
            owner = found(self.addresses)
        except ImportError:
            return [self.addresses[0]]
        names = () if self.optional else self.names
        if isinstance(owner, type):  # what Python gives to each class is not meant, nor what a base has in its stead
            kinds = owner.__mro__[:-1] if self.inherited else (owner,)
            names = tuple(name for name in names if not any(name in vars(kind) for kind in kinds))
        else:
            names = tuple(name for name in names if not hasattr(owner, name))
        return [f"{self.addresses[0]}.{name}" for name in names]

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where the owner may be."""
        return (self.owner,) if isinstance(self.owner, str) else self.owner


def found(addresses: tuple[str, ...]) -> Any:
    """What is at the first of these addresses at which there is something. Raises ``ImportError`` where nothing is."""
    for module, _, kind in (address.partition(":") for address in addresses):
        try:
            imported_module: Any = importlib.import_module(module)
            return getattr(imported_module, kind) if kind else imported_module
        except (ImportError, AttributeError):
            continue
    raise ImportError(f"{addresses[0]} is not there")


_KERAS = "keras.src"
_LAYERS = f"{_KERAS}.layers.preprocessing"
_TF = "tensorflow.python"
_TF_KERAS = "tf_keras.src"
_BATCHES = ("train_on_batch", "test_on_batch")
SCATTER = tuple(f"scatter_{how}" for how in ("add", "sub", "update", "max", "min", "mul", "div"))
_ASSIGN = ("assign", "assign_add", "assign_sub", *SCATTER)
_DEVICES = (
    *("set_visible_devices", "set_memory_growth", "set_logical_device_configuration"),
    *("intra_op_parallelism_threads", "inter_op_parallelism_threads"),
)

# As Keras up to 3.15 calls them, and from 3.16 on.
TRAINER = (f"{_KERAS}.backend.tensorflow.trainer:TensorFlowTrainer", f"{_KERAS}.backend.tensorflow.trainer:Trainer")
BASE_TRAINER = (f"{_KERAS}.trainers.trainer:Trainer", f"{_KERAS}.trainers.trainer:BaseTrainer")
VARIABLE = (f"{_KERAS}.backend.tensorflow.core:Variable", f"{_KERAS}.backend:Variable")

SEAMS = (
    Seam(TRAINER, ("fit", "evaluate", "predict"), "loops"),
    Seam(TRAINER, _BATCHES, "steps by hand"),
    Seam(
        TRAINER,
        ("make_train_function", "make_test_function"),
        "a step becomes a graph",
    ),
    Seam(
        TRAINER,
        ("stop_training",),
        "all ranks stop at one batch",
        optional=True,  # Keras's trainers set it on themselves
    ),
    Seam(f"{_KERAS}.backend.tensorflow.trainer", ("TFEpochIterator",), "a loop gets its data"),
    Seam(BASE_TRAINER, ("compile",), "metrics where programs for Keras 2 give them"),
    Seam(BASE_TRAINER, ("_get_metrics_result_or_logs",), "logs of all ranks"),
    Seam(f"{_KERAS}.trainers.compile_utils:CompileLoss", ("__call__",), "a loss has the weight of its rows"),
    Seam(f"{_KERAS}.losses.loss:Loss", ("__call__",), "a loss has the weight of its rows"),
    Seam(f"{_KERAS}.losses.loss", ("reduce_weighted_values",), "a mean over rows is one of all rows"),
    Seam(f"{_KERAS}.losses.losses:Dice", ("call",), "an overlap of all rows", inherited=True),
    Seam(f"{_KERAS}.losses.losses:Tversky", ("call",), "an overlap of all rows", inherited=True),
    Seam(f"{_KERAS}.layers.layer:Layer", ("add_loss",), "additional losses of all rows"),
    Seam(f"{_KERAS}.layers.layer:Layer", ("__call__",), "batches without rows"),
    Seam(f"{_KERAS}.layers.layer:Layer", ("__init__",), "a step that is tried makes no layers"),
    Seam(f"{_KERAS}.layers.layer:Layer", ("_maybe_build",), "what Keras does to build a layer, and no more, stays"),
    Seam(f"{_KERAS}.layers.normalization.batch_normalization:BatchNormalization", ("_moments",), "statistics of all"),
    Seam(f"{_KERAS}.metrics.metric:Metric", ("__getattribute__",), "results in loops of the cell's own", True),
    Seam(f"{_KERAS}.metrics.reduction_metrics:Mean", ("update_state",), "means of all rows"),
    Seam(f"{_KERAS}.metrics.reduction_metrics:Sum", ("update_state",), "sums of all rows"),
    Seam(f"{_KERAS}.metrics.reduction_metrics:MeanMetricWrapper", ("update_state",), "numbers of a batch of all rows"),
    Seam(f"{_KERAS}.optimizers.base_optimizer:BaseOptimizer", ("apply",), "every gradient passes here"),
    Seam(f"{_KERAS}.optimizers.loss_scale_optimizer:LossScaleOptimizer", ("apply",), "every gradient passes here"),
    Seam(f"{_KERAS}.optimizers.loss_scale_optimizer:LossScaleOptimizer", ("scale_loss",), "trials do not overflow"),
    Seam(f"{_KERAS}.optimizers.adam:Adam", ("update_step",), "one kernel for an update"),
    Seam(f"{_KERAS}.optimizers.sgd:SGD", ("update_step",), "one kernel for an update"),
    Seam(f"{_KERAS}.models.model:Model", ("__call__",), "XLA compiles the forward pass", inherited=True),
    Seam(f"{_KERAS}.models.model:Model", ("save", "save_weights", "export"), "all ranks save after the same steps"),
    Seam(f"{_KERAS}.layers.layer:Layer", ("get_weights",), "all ranks save after the same steps"),
    Seam(f"{_TF}.saved_model.save", ("save_and_return_nodes",), "what is saved computes on whole batches"),
    Seam(f"{_TF}.checkpoint.checkpoint:Checkpoint", ("write", "save"), "all ranks save after the same steps"),
    Seam(f"{_TF}.checkpoint.checkpoint_management:CheckpointManager", ("save",), "all ranks save after the same steps"),
    Seam(f"{_KERAS}.backend:Variable", ("_initialize_with_initializer",), "initial values", inherited=True),
    Seam(f"{_KERAS}.backend:Variable", ("__init__",), "a trial makes no variables", inherited=True),
    Seam(VARIABLE, ("_initialize_with_initializer",), "values there and then", inherited=True),
    Seam(f"{_LAYERS}.normalization:Normalization", ("adapt",), "the state of all rows"),
    Seam(
        f"{_LAYERS}.discretization:Discretization", ("adapt", "update_state", "finalize_state"), "the state of all rows"
    ),
    Seam(f"{_LAYERS}.string_lookup:StringLookup", ("adapt",), "the state of all rows"),
    Seam(f"{_LAYERS}.integer_lookup:IntegerLookup", ("adapt",), "the state of all rows"),
    Seam(f"{_LAYERS}.text_vectorization:TextVectorization", ("adapt",), "the state of all rows"),
    Seam(f"{_LAYERS}.index_lookup:IndexLookup", ("update_state", "finalize_state"), "the state of all rows"),
    Seam(f"{_LAYERS}.feature_space:FeatureSpace", ("adapt",), "the state of all rows"),
    Seam(f"{_TF}.eager.backprop:GradientTape", ("gradient",), "gradients of a loop of the cell's own"),
    Seam(f"{_TF}.eager.backprop:GradientTape", ("__init__", "jacobian", "batch_jacobian"), "gradients row by row"),
    Seam("tensorflow", ("vectorized_map", "map_fn"), "gradients row by row"),
    Seam("tensorflow", ("gradients",), "gradients of a loop of the cell's own"),
    Seam(f"{_KERAS}.utils.file_utils", ("urlretrieve", "extract_archive"), "one download for the workers of a host"),
    Seam("keras.wrappers", ("__getattr__",), "its names are loaded late, by lean.py", True),
    Seam(f"{_KERAS}.visualization.plot_image_gallery", ("plt",), "loaded late, by lean.py"),
    Seam(f"{_KERAS}.trainers.data_adapters.array_slicing", ("pandas", "ARRAY_TYPES"), "loaded late, by lean.py"),
    Seam("tensorflow._api.v2.nn", ("compute_average_loss",), "a mean over the global batch"),
    Seam(f"{_TF}.eager.polymorphic_function.polymorphic_function:Function", ("__call__",), "exchanges without XLA"),
    Seam(f"{_TF}.ops.resource_variable_ops:ResourceVariable", _ASSIGN, "weights that a loop sets", inherited=True),
    Seam(
        f"{_TF}.ops.resource_variable_ops:ResourceVariable", ("_handle",), "what a step reads, on trial", optional=True
    ),
    Seam(f"{_TF}.data.ops.iterator_ops:OwnedIterator", ("_next_internal", "get_next_as_optional"), "batches drawn"),
    Seam(f"{_TF}.data.ops.dataset_ops:DatasetV2", ("__iter__",), "loops over shares"),
    Seam(f"{_TF}.data.ops.dataset_ops:DatasetV2", ("reduce", "cardinality"), "what would take shares for all rows"),
    Seam(
        f"{_TF}.data.ops.dataset_ops:DatasetV2",
        ("map", "interleave", "batch", "ragged_batch", "with_options"),
        "elements in one order on all ranks",
    ),
    Seam(f"{_TF}.ops.script_ops:FuncRegistry", ("__call__",), "Python code that draws random numbers for data"),
    Seam(f"{_TF}.autograph.operators.control_flow", ("for_loop_registry",), "loops over shares in graphs"),
    Seam(f"{_TF}.ops.gen_summary_ops", ("create_summary_file_writer",), "event files are sent to the notebook"),
    Seam(f"{_TF}.ops.gen_summary_ops", ("write_summary",), "a step on trial writes nothing"),
    Seam(f"{_TF}.ops.gen_logging_ops", ("print_v2",), "a step on trial writes nothing"),
    Seam(f"{_TF}.ops.gen_lookup_ops", ("lookup_table_insert_v2",), "a step on trial writes nothing"),
    *(
        Seam(f"{_TF}.ops.{module}", ("*",), "each rank draws for its own rows", optional=True)
        for module in ("gen_random_ops", "gen_stateless_random_ops", "gen_stateless_random_ops_v2")
    ),
    Seam(f"{_TF}.framework.random_seed", ("_graph_to_seed_dict",), "initial values that a graph would draw"),
    Seam(f"{_TF}.ops.stateful_random_ops:Generator", ("from_non_deterministic_state",), "the run's seed"),
    Seam(f"{_TF}.eager.context:Context", _DEVICES, "a worker's devices and threads are set up before the cell"),
    Seam("tensorflow._api.v2.distribute", ("*",), "strategies are one replica", optional=True),
    Seam("tensorflow._api.v2.distribute.experimental", ("*",), "strategies are one replica", optional=True),
    Seam(f"{_KERAS}.callbacks.model_checkpoint:ModelCheckpoint", ("__init__",), "names that programs for Keras 2 give"),
    Seam(f"{_KERAS}.models.model:Model", ("load_weights",), "names that programs for Keras 2 give"),
    Seam("tensorflow._api.v2.train", ("latest_checkpoint",), "names that programs for Keras 2 give"),
    Seam(f"{_KERAS}.optimizers.base_optimizer:BaseOptimizer", ("__init__", "apply_gradients"), "arguments of Keras 2"),
    Seam(f"{_KERAS}.optimizers.base_optimizer:BaseOptimizer", ("lr",), "rates of programs for Keras 2", optional=True),
    Seam("keras._tf_keras.keras.backend", ("set_value",), "rates that programs for Keras 2 set", optional=True),
    Seam("numpy", ("int", "float", "bool", "object", "str", "complex"), "types as NumPy 1 had them", optional=True),
    Seam(f"{_KERAS}.models.model:Model", ("fit", "evaluate", "predict"), "as Keras 2 has them", inherited=True),
    Seam(f"{_TF}.data.ops.dataset_ops:DatasetV2", ("from_generator", "with_options"), "rows of each worker's own"),
    Seam(
        f"{_TF}.distribute.distribute_lib:_DefaultDistributionExtended",
        ("colocate_vars_with", "update"),
        "optimizers within strategy.run",
        inherited=True,
    ),
    Seam(
        f"{_TF}.framework.random_seed", ("get_seed",), "seeds of operations and datasets, where nothing else is seeded"
    ),
    Seam("random", ("seed",), "the run's seed"),
    Seam("random:Random", ("seed",), "the run's seed"),
    Seam("numpy.random.bit_generator", ("randbits",), "the run's seed"),
)

OF_TF_KERAS = (
    Seam(f"{_TF_KERAS}.engine.training:Model", ("fit", "evaluate", "predict"), "loops"),
    Seam(f"{_TF_KERAS}.engine.training:Model", ("train_on_batch", "test_on_batch"), "refused"),
    Seam(f"{_TF_KERAS}.engine.training:Model", ("_validate_and_get_metrics_result",), "logs of all ranks"),
    Seam(f"{_TF_KERAS}.engine.training:Model", ("stop_training",), "all ranks stop at one batch", optional=True),
    Seam(
        f"{_TF_KERAS}.engine.data_adapter:DataHandler",
        ("_configure_dataset_and_inferred_steps",),
        "a loop gets its data",
    ),
    Seam(f"{_TF_KERAS}.engine.data_adapter:TensorLikeDataAdapter", ("slice_inputs",), "a loop gets its data"),
    Seam(f"{_TF_KERAS}.engine.base_preprocessing_layer:PreprocessingLayer", ("adapt",), "refused on shares"),
    Seam(f"{_TF_KERAS}.optimizers.optimizer:Optimizer", ("apply_gradients",), "every gradient passes here"),
    Seam(f"{_TF_KERAS}.optimizers.legacy.optimizer_v2:OptimizerV2", ("apply_gradients",), "every gradient passes here"),
    Seam(f"{_TF_KERAS}.mixed_precision.loss_scale_optimizer:LossScaleOptimizer", ("apply_gradients",), "refused"),
    Seam(f"{_TF_KERAS}.mixed_precision.loss_scale_optimizer:LossScaleOptimizerV3", ("apply_gradients",), "refused"),
    Seam(f"{_TF_KERAS}.engine.compile_utils:LossesContainer", ("__call__",), "a loss has the weight of its rows"),
    Seam(f"{_TF_KERAS}.losses:Loss", ("__call__",), "a loss has the weight of its rows"),
    Seam(f"{_TF_KERAS}.utils.losses_utils", ("compute_weighted_loss", "apply_valid_mask"), "means of all rows"),
    Seam(f"{_TF_KERAS}.metrics.base_metric:Reduce", ("update_state",), "means of all rows"),
)

_KNOWN = {(each, name) for seam in (*SEAMS, *OF_TF_KERAS) for each in seam.addresses for name in seam.names}
_PACKAGES = {re.split(r"[.:]", seam.addresses[0])[0] for seam in (*SEAMS, *OF_TF_KERAS)}
_ABSENT = object()


def check(seams: tuple[Seam, ...] = SEAMS) -> None:
    """Raise ``ImportError`` that names what the installed packages lack."""
    missing = [address for seam in seams for address in seam.missing]
    if missing:
        raise ImportError(
            f"{', '.join(missing)} cannot be found in {_installed()}, but training with several workers replaces it. "
            f"Tested versions are {TESTED}: install these where the executors run."
        )


def is_known(owner: Any, name: str) -> bool:
    """Whether ``owner.name`` is one of these places, or of another package than they are."""
    if isinstance(owner, ModuleType):
        address = owner.__name__
    elif isinstance(owner, type):
        address = f"{owner.__module__}:{owner.__qualname__}"
    else:
        address = type(owner).__module__
    return re.split(r"[.:]", address)[0] not in _PACKAGES or bool({(address, name), (address, "*")} & _KNOWN)


def _installed() -> str:
    packages = [name for name in ("keras", "tensorflow", "tf_keras") if name in sys.modules]
    return " and ".join(f"{name} {_version(name)}" for name in packages) or "this Python"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:  # tensorflow-cpu is another package of the same name
        return str(getattr(sys.modules[name], "__version__", "of unknown version"))


def replace(stack: ExitStack, owner: Any, name: str, value: Any) -> None:
    """Set ``owner.name``, one of :data:`SEAMS`, until ``stack`` closes.

    What ``owner`` only inherits is not copied into it afterwards.
    """
    if not is_known(owner, name):
        raise LookupError(f"{owner!r}.{name} is not among the places that a run changes: add it to the table, with why")
    original = vars(owner).get(name, _ABSENT)
    setattr(owner, name, value)
    if original is _ABSENT:
        stack.callback(delattr, owner, name)
    else:
        stack.callback(setattr, owner, name, original)


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Let ``owner.name`` be ``value`` in the block."""
    with ExitStack() as stack:
        replace(stack, owner, name, value)
        yield


def wrap(stack: ExitStack, owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Replace ``owner.name`` by ``around(original, *args, **kwargs)`` until ``stack`` closes.

    What was imported from ``owner`` meanwhile does as the original does from then on.
    """
    original = getattr(owner, name)
    held = [around]

    @wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return held[0](original, *args, **kwargs) if held else original(*args, **kwargs)

    replace(stack, owner, name, wrapped)
    stack.callback(held.clear)


def replace_item(stack: ExitStack, table: dict[Any, Any], key: Any, value: Any) -> None:
    """Set ``table[key]``, which is there, until ``stack`` closes; its place in the order of keys stays."""
    stack.callback(table.__setitem__, key, table[key])
    table[key] = value
