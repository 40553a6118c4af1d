"""Objects of Keras by value: made by their class alone, then given the attributes that they had.

Keras itself pickles a model as a ``.keras`` archive, which knows classes by name, needs ``get_config`` and forgets
every attribute that the constructor did not get. All of its state is attributes, so these are what is sent; both sides
need the same Keras. Nothing here imports it: who holds an object of Keras has it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from tfos_magic.errors import CaptureError
from tfos_magic.values import originals, tensors

_MADE_ANEW = ("build", "quantize")
_OF_A_TRAINING = ("train_function", "test_function", "predict_function", "_eval_epoch_iterator", "_eval_data_handler")
_FOLLOWED, _FOLLOWED_BY_NAME = "_self_unconditional_checkpoint_dependencies", "_self_unconditional_dependency_names"
"""Where TensorFlow, too, keeps the functions of a training that XLA compiled whole."""
_MADE_OF = "_tfos_made_of"
_BY_VARIABLE = ("_trainable_variables_indices", "_var_to_optimizer_idx")


def is_saveable(obj: Any) -> bool:
    """Whether this is a layer, model, metric or optimizer of Keras 3 that does not say itself how it is pickled."""
    module = sys.modules.get("keras.src.saving.keras_saveable")
    return (
        module is not None
        and isinstance(obj, module.KerasSaveable)
        and type(obj).__reduce__ is module.KerasSaveable.__reduce__
    )


def is_model(obj: Any) -> bool:
    """Whether this is a model of Keras 3."""
    keras = sys.modules.get("keras")
    return keras is not None and isinstance(obj, keras.Model)


def is_of_a_model(obj: Any) -> bool:
    """Whether this is what a functional model is made of beside its layers: a symbolic tensor, or a layer's call."""
    keras = sys.modules.get("keras.src")
    return keras is not None and isinstance(obj, (keras.KerasTensor, keras.ops.node.Node))


def is_variable(obj: Any) -> bool:
    """Whether this is a ``keras.Variable``."""
    keras = sys.modules.get("keras")
    return keras is not None and isinstance(obj, keras.Variable)


def version() -> str:
    """The version of Keras that is loaded."""
    return str(sys.modules["keras"].__version__)


def empty(kind: Any, made_by: str, travels_by: str) -> Any:
    """A ``kind`` without state, known by a token of :mod:`originals`.

    Raises :class:`CaptureError` where Keras is another than the one it was ``made_by``.
    """
    import keras

    if keras.__version__ != made_by:
        raise CaptureError(
            f"A {kind.__name__} of Keras {made_by} cannot become one of Keras {keras.__version__}: install the same "
            "version in the notebook's environment and on the executors."
        )
    obj = kind.__new__(kind)
    originals.note(obj, travels_by)
    return obj


def is_image_iterator(obj: Any) -> bool:
    """Whether it is what an ``ImageDataGenerator`` flows, which holds a generator over its own indices."""
    module = sys.modules.get("keras.src.legacy.preprocessing.image")
    return module is not None and isinstance(obj, module.Iterator)


def reduce_image_iterator(obj: Any) -> Any:
    """The state of such an iterator, which begins a pass anew where one was under way by ``next``."""
    return _image_iterator, (type(obj), {name: value for name, value in vars(obj).items() if name != "index_generator"})


def _image_iterator(kind: Any, state: dict[str, Any]) -> Any:
    made = kind.__new__(kind)
    vars(made).update(state)
    made.index_generator = made._flow_index()
    return made


def state_of(obj: Any) -> Any:
    """What :func:`restore` gives an empty object; without functions that are traced or made anew there."""
    if tensors.is_checkpoint(obj):
        return {_MADE_OF: tensors.made_of(obj)}
    if (getstate := getattr(type(obj), "__getstate__", None)) and getstate is not getattr(object, "__getstate__", None):
        return obj.__getstate__()
    state = dict(obj.__dict__)
    for name in _MADE_ANEW:
        state.pop(name, None)
    if any(name in state.get(_FOLLOWED_BY_NAME, ()) for name in _OF_A_TRAINING):
        named = state[_FOLLOWED_BY_NAME].items()
        state[_FOLLOWED_BY_NAME] = {name: value for name, value in named if name not in _OF_A_TRAINING}
        state[_FOLLOWED] = [followed for followed in state[_FOLLOWED] if followed.name not in _OF_A_TRAINING]
    return {**state, **{name: None for name in _OF_A_TRAINING if name in state}}


def restore(obj: Any, state: Any) -> None:
    """Give an object its state."""
    if hasattr(type(obj), "__setstate__"):  # asked of an empty object, a __getattr__ of its own would go astray
        obj.__setstate__(state)
    else:
        obj.__dict__.update(state)


def finish(restored: Sequence[Any], registered: Mapping[str, Any], variables: Mapping[str, Any]) -> None:
    """Make anew what refers to objects by identity, when all are there: ``variables`` are keyed by what they were."""
    for obj in restored:
        if tracker := obj.__dict__.get("_tracker"):
            tracker.stored_ids = {name: {id(each) for each in held} for name, (_, held) in tracker.config.items()}
        if depths := obj.__dict__.get("_nodes_by_depth"):
            obj.__dict__["_nodes"] = {_node_key(node) for nodes in depths.values() for node in nodes}
        for name in _BY_VARIABLE:
            if places := obj.__dict__.get(name):
                obj.__dict__[name] = {variables[key]._unique_id: place for key, place in places.items()}
    for obj in sorted((obj for obj in restored if _MADE_OF in obj.__dict__), key=tensors.is_manager):
        tensors.make_checkpoint(obj, obj.__dict__.pop(_MADE_OF))
    if registered:
        from keras.src.saving import object_registration

        object_registration.GLOBAL_CUSTOM_OBJECTS.update(registered)
        object_registration.GLOBAL_CUSTOM_NAMES.update({value: name for name, value in registered.items()})


def _node_key(node: Any) -> str:
    from keras.src.ops.function import make_node_key

    return str(make_node_key(node.operation, node.operation._inbound_nodes.index(node)))


def registered_name(obj: Any) -> str:
    """The name that ``keras.saving.register_keras_serializable`` gave to a class or function; empty without one."""
    module = sys.modules.get("keras.src.saving.object_registration")
    return str(module.GLOBAL_CUSTOM_NAMES.get(obj, "")) if module is not None else ""


def reduce(obj: Any) -> Any:
    """How Keras's containers are made anew, filled before they have their tracker; ``NotImplemented`` for others."""
    if type(obj).__name__ == "ListWrapper" and type(obj).__module__.startswith("tensorflow."):
        return type(obj).__new__, (type(obj),), dict(vars(obj))  # its constructor asks what it is given, empty still
    tracking = sys.modules.get("keras.src.utils.tracking")
    if tracking is None:
        return NotImplemented
    if type(obj).__name__ == "DynamicBackend":  # pickle would ask it, empty, for attributes that it seeks in its state
        return type(obj), (obj._backend,)
    if type(obj).__name__ == "LazyModule" and type(obj).__module__ == "keras.src.utils.module_utils":  # likewise
        return type(obj), (obj.name, obj.pip_name, obj.import_error_msg)
    state = getattr(obj, "__dict__", None)
    if isinstance(obj, tracking.TrackedList):
        return type(obj), (), state, iter(list(obj))
    if isinstance(obj, (tracking.TrackedDict, tracking.TrackedOrderedDict)):
        return type(obj), (), state, None, iter(list(obj.items()))
    if isinstance(obj, tracking.TrackedSet):
        return type(obj), (list(obj),), state
    return NotImplemented
