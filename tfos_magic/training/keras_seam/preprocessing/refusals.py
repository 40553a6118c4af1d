"""What ``adapt()`` cannot make equal to one process on rows that ranks share is refused, with what to write instead."""

from __future__ import annotations

from typing import Any

from tfos_magic.errors import TrainingError


def refuse_on_parts(layer: Any, parts: bool) -> None:
    if parts:
        raise TrainingError(
            f"{type(layer).__name__}.adapt() would count rows by each worker's share of the fed DataFrame, because "
            "its batches are split up first. Use only map() on the dataset, or choose rows in Spark."
        )


def refuse_one_document(layer: Any, flat: bool) -> None:
    if flat:
        raise TrainingError(
            f"{type(layer).__name__}.adapt() with output_mode='tf_idf' treats a batch of shape (rows,) as one "
            "document, but each worker has only part of it. Make each row a document: .map(lambda text: text[:, "
            "None])."
        )


def refuse_axis_of_rows(layer: Any, along_rows: bool) -> None:
    if along_rows:
        raise TrainingError(
            f"Normalization.adapt() with axis={layer.axis} would treat each row of a batch separately. Give the "
            "column an axis, .map(lambda value: value[:, None]), or use one mean over everything, axis=None."
        )
