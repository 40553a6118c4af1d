"""Shares of several sources in one element of a dataset."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfos_magic.training.inputs.marks import has_shares, inputs_of, is_marked
from tfos_magic.training.step import checked_rows


def of_equal_rows(dataset: Any) -> Any:
    """Let ``dataset``, of shares, end where it joins shares of different sizes, by :func:`checked_rows`."""
    if not _joins_shares(dataset):
        return dataset

    @tf.autograph.experimental.do_not_convert
    def check(*element: Any) -> Any:
        batch = element[0] if len(element) == 1 and not isinstance(dataset.element_spec, tuple) else element
        with tf.control_dependencies([checked_rows(batch)]):
            return tf.nest.map_structure(tf.identity, batch, expand_composites=True)

    return dataset.map(check)


def _joins_shares(dataset: Any) -> bool:
    inputs = [] if is_marked(dataset) else [source for source in inputs_of(dataset) if has_shares(source)]
    return (len(inputs) > 1 and type(dataset).__name__ == "_ZipDataset") or any(map(_joins_shares, inputs))
