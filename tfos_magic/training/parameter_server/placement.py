"""Which parameter server holds which variable, and how variables lie end to end in what is sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf


def split_by_size(sizes: Sequence[int], servers: int) -> list[list[int]]:
    """Give each server the numbers of its variables: the largest first, each to the server that holds least so far.

    Variables stay whole, for not every optimizer treats their elements one by one.
    """
    shares: list[list[int]] = [[] for _ in range(servers)]
    held = [0] * servers
    for index in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        least = held.index(min(held))
        shares[least].append(index)
        held[least] += sizes[index]
    return [sorted(share) for share in shares]


@dataclass(frozen=True)
class VariableBlock:
    """Variables of one dtype that travel as one flat array; ``members`` are their places in the share."""

    dtype: str
    members: tuple[int, ...]


def blocks_of(dtypes: Sequence[str], members: Sequence[int]) -> list[VariableBlock]:
    """Group ``members`` by the dtypes that they have, in the order of their first appearance."""
    by_dtype: dict[str, list[int]] = {}
    for member in members:
        by_dtype.setdefault(dtypes[member], []).append(member)
    return [VariableBlock(dtype, tuple(group)) for dtype, group in by_dtype.items()]


def join(block: VariableBlock, tensors: Sequence[Any]) -> tf.Tensor:
    """Lay the members of a block, taken from ``tensors`` by place, end to end."""
    return tf.concat([tf.reshape(tf.convert_to_tensor(tensors[i]), [-1]) for i in block.members], 0)


def part(block: VariableBlock, flat: tf.Tensor, variables: Sequence[Any]) -> list[tf.Tensor]:
    """Cut what :func:`join` made into tensors of the shapes that ``variables`` have."""
    shapes = [tuple(variables[i].shape) for i in block.members]
    pieces = tf.split(flat, [tf.TensorShape(shape).num_elements() for shape in shapes])
    return [tf.reshape(piece, shape) for piece, shape in zip(pieces, shapes, strict=True)]
