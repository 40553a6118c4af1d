"""A program as an estimator of Spark ML, and the SavedModel that it exports as the model."""

from __future__ import annotations

import argparse
import copy
from collections.abc import Iterator, Mapping
from typing import Any

from pyspark import SparkContext
from pyspark.ml import Estimator, Model
from pyspark.ml.param import Param, Params, TypeConverters

from tfos_magic.errors import UsageError
from tfos_magic.tensorflowonspark import TFCluster


class Namespace:
    """Arguments by name, from a dict or a namespace, or in a list, as a command line has them."""

    argv: list[str] | None = None

    def __init__(self, d: Any) -> None:
        if isinstance(d, list):
            self.argv = d
        elif isinstance(d, Mapping):
            vars(self).update(d)
        elif isinstance(d, (argparse.Namespace, Namespace)):
            vars(self).update(vars(d))
        else:
            raise UsageError(f"arguments are {type(d).__name__}: give a dict, a namespace, or a list of texts.")

    def __iter__(self) -> Iterator[str]:
        return iter(self.argv or vars(self))

    def __contains__(self, name: object) -> bool:
        return name in (self.argv or vars(self))

    def __eq__(self, other: object) -> bool:
        return self.argv == other if self.argv else vars(self) == getattr(other, "__dict__", None)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        named = ", ".join(f"{name}={value!r}" for name, value in sorted(vars(self).items()))
        return str(self.argv) if self.argv else f"Namespace({named})"


class TFParams(Params):
    """Parameters of Spark ML beside arguments of a program."""

    args: Any = None

    def merge_args_params(self) -> Any:
        """A copy of the arguments, with the parameters by their names."""
        merged = copy.copy(self.args)
        vars(merged).update({param.name: self.getOrDefault(param) for param in self.params if self.isDefined(param)})
        return merged


def _to_dict(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{value!r} is no dict")
    return value


def _has(*names: str, of: Any = TypeConverters.toString) -> type:
    """A mixin with parameters, each with a setter and a getter: ``batch_size`` has ``setBatchSize``."""

    def setter(name: str) -> Any:
        return lambda self, value: self._set(**{name: value})

    def getter(name: str) -> Any:
        return lambda self: self.getOrDefault(name)

    members: dict[str, Any] = {}
    for name in names:
        spelled = "".join(_SPELLED.get(part, part.capitalize()) for part in name.split("_"))
        members[name] = Param(Params._dummy(), name, _DOC[name], typeConverter=of)
        members |= {f"set{spelled}": setter(name), f"get{spelled}": getter(name)}
    return type(f"Has{spelled}", (Params,), members)


_SPELLED = {"ps": "PS", "tfrecord": "TFRecord"}
_DOC = {
    "batch_size": "rows of a batch",
    "cluster_size": "nodes of the cluster",
    "driver_ps_nodes": "parameter servers on the driver: not supported",
    "epochs": "how many times the rows are fed",
    "export_dir": "where the program exports its SavedModel",
    "grace_secs": "seconds that the program has after its last row",
    "input_mapping": "tensors by column",
    "input_mode": "InputMode.SPARK",
    "master_node": "what the chief is called",
    "model_dir": "where the program writes checkpoints",
    "num_ps": "parameter servers",
    "output_mapping": "columns by tensor",
    "protocol": "not used",
    "readers": "not used",
    "signature_def_key": "the signature of the SavedModel",
    "steps": "not used, but by the program",
    "tag_set": "not used",
    "tensorboard": "whether TensorBoard is served",
    "tfrecord_dir": "not used",
}
_Numbers = _has("batch_size", "cluster_size", "epochs", "grace_secs", "input_mode", "num_ps", "readers", "steps",
                of=TypeConverters.toInt)  # fmt: skip
_Texts = _has("export_dir", "master_node", "model_dir", "protocol", "tfrecord_dir")
_Switches = _has("driver_ps_nodes", "tensorboard", of=TypeConverters.toBoolean)
HasInputMapping, HasOutputMapping = _has("input_mapping", of=_to_dict), _has("output_mapping", of=_to_dict)
HasBatchSize = _has("batch_size", of=TypeConverters.toInt)
HasModel = _has("export_dir", "model_dir", "signature_def_key", "tag_set")


class TFEstimator(Estimator[Any], TFParams, _Numbers, _Texts, _Switches, HasInputMapping):  # type: ignore[misc, valid-type]
    """Fits by running ``train_fn(args, ctx)`` on the nodes of a cluster, fed the columns of ``input_mapping`` in the
    order of their names. What it exports to ``export_dir`` is the model."""

    def __init__(self, train_fn: Any, tf_args: Any, export_fn: Any = None) -> None:
        super().__init__()
        if export_fn is not None:
            raise UsageError("export_fn belongs to TensorFlow 1: export in train_fn, with compat.export_saved_model.")
        self.train_fn, self.args = train_fn, Namespace(tf_args)
        self._setDefault(
            input_mapping={},
            cluster_size=1,
            num_ps=0,
            driver_ps_nodes=False,
            input_mode=TFCluster.InputMode.SPARK,
            master_node="chief",
            protocol="grpc",
            tensorboard=False,
            model_dir=None,
            export_dir=None,
            tfrecord_dir=None,
            batch_size=100,
            epochs=1,
            readers=1,
            steps=1000,
            grace_secs=30,
        )

    def _fit(self, dataset: Any) -> TFModel:
        args = self.merge_args_params()
        if args.input_mode != TFCluster.InputMode.SPARK:
            raise UsageError("Spark feeds an estimator: leave out input_mode.")
        cluster = TFCluster.run(
            SparkContext.getOrCreate(),
            self.train_fn,
            self.args.argv or args,
            args.cluster_size,
            args.num_ps,
            tensorboard=args.tensorboard,
            input_mode=TFCluster.InputMode.SPARK,
            log_dir=args.model_dir,
            master_node=args.master_node,
            driver_ps_nodes=args.driver_ps_nodes,
        )
        try:
            cluster.train(dataset.select(sorted(args.input_mapping)), args.epochs)
        finally:
            cluster.shutdown(grace_secs=args.grace_secs)
        made: TFModel = self._copyValues(TFModel(self.args))
        return made


class TFModel(Model, TFParams, HasBatchSize, HasModel, HasInputMapping, HasOutputMapping):  # type: ignore[misc, valid-type]
    """Predicts by the SavedModel of ``export_dir``: the columns of ``input_mapping`` go into its tensors, and those of
    ``output_mapping`` come out, alone, in the order of the tensors' names."""

    def __init__(self, tf_args: Any) -> None:
        super().__init__()
        self.args = Namespace(tf_args)
        self._setDefault(
            input_mapping={},
            output_mapping={},
            batch_size=100,
            model_dir=None,
            export_dir=None,
            signature_def_key="serving_default",
            tag_set=None,
        )

    def _transform(self, dataset: Any) -> Any:
        from pyspark.sql import functions as F

        from tfos_magic.frames import predict

        args = self.merge_args_params()
        if not args.export_dir:
            raise UsageError(
                "A model predicts with its SavedModel: call setExportDir(…) with the program's export folder."
            )
        outputs = sorted(args.output_mapping.items())
        made = predict(
            args.export_dir,
            dataset.select(sorted(args.input_mapping)),
            features={tensor: column for column, tensor in sorted(args.input_mapping.items())},
            output={tensor: tensor for tensor, _ in outputs},
            batch_size=args.batch_size,
            signature=args.signature_def_key,
        )
        return made.select([F.col(f"`{tensor}`").alias(column) for tensor, column in outputs])
