"""A multiset of rows as two numbers, so that append-only answers are compared without being collected.

Every row is hashed to 64 bits and the hashes are added modulo 2⁶⁴: order does not matter, a row twice is not a row
once, and parts can be added up. The sink does this to what it received, the oracle to its answer inside Spark. The
hash is our own arithmetic, the same on every machine and in every version of the libraries. It is not cryptographic:
it finds faults, not adversaries.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from nexmark.draws import UInt64s, key, mix_inplace
from nexmark.workload import Int64s

_MODULUS = 2**64
_MULTIPLIER = np.uint64(0x9FB21C651E98DF25)
_SHIFT = np.uint64(29)


class Fingerprint(NamedTuple):
    """Number of rows, and the sum of their hashes modulo 2⁶⁴."""

    rows: int
    digest: int

    @staticmethod
    def combine(parts: Iterable["Fingerprint"]) -> "Fingerprint":
        """The fingerprint of all rows of all parts."""
        rows = digest = 0
        for part in parts:
            rows += part.rows
            digest += part.digest
        return Fingerprint(rows, digest % _MODULUS)


def fingerprint(batch: pa.RecordBatch, columns: Sequence[str]) -> Fingerprint:
    """Columns are int64 or string without nulls; they are hashed in the order given, not in the batch's."""
    hashes = row_hashes(batch, columns)
    return Fingerprint(len(hashes), int(hashes.sum(dtype=np.uint64)))


def row_hashes(batch: pa.RecordBatch, columns: Sequence[str]) -> UInt64s:
    """64 bits per row."""
    hashes = np.zeros(batch.num_rows, dtype=np.uint64)
    for place, name in enumerate(columns):
        column = batch.column(name)
        if column.null_count:
            raise ValueError(f"fingerprint: column {name!r} has {column.null_count} nulls")
        hashes ^= _column_words(column, name)
        hashes += np.uint64(key(0, place))
        mix_inplace(hashes)
    return hashes


def _column_words(column: Any, name: str) -> UInt64s:
    if pa.types.is_int64(column.type):
        words: UInt64s = column.to_numpy().view(np.uint64)
        return words
    if pa.types.is_large_string(column.type):
        column = column.cast(pa.string())
    if pa.types.is_string(column.type):
        return _string_hashes(column)
    raise TypeError(f"fingerprint: column {name!r} must be int64 or string, got {column.type}")


def _string_hashes(column: Any) -> UInt64s:
    """Eight bytes of every string per round; strings that have ended leave the round."""
    _, offsets_buffer, data = column.buffers()
    if not len(column):
        return np.zeros(0, dtype=np.uint64)
    offsets = np.frombuffer(offsets_buffer, dtype=np.int32)[column.offset : column.offset + len(column) + 1]
    starts = offsets[:-1].astype(np.int64)
    sizes: Int64s = offsets[1:] - starts
    words = _overlapping_words(data, int(offsets[0]), int(offsets[-1]))
    starts -= int(offsets[0])
    hashes: UInt64s = sizes.view(np.uint64) * _MULTIPLIER
    whole = int(sizes.min()) // 8
    for index in range(whole):
        _absorb(hashes, words[starts + 8 * index])
    for index in range(whole, -(-int(sizes.max()) // 8)):
        active = np.flatnonzero(sizes > 8 * index)
        left = np.minimum(sizes[active] - 8 * index, 8)
        part = hashes[active]
        _absorb(part, words[starts[active] + 8 * index] & _MASKS[left])
        hashes[active] = part
    return hashes


_MASKS = np.array([(1 << 8 * size) - 1 for size in range(9)], dtype=np.uint64)


def _absorb(hashes: UInt64s, words: UInt64s) -> None:
    hashes ^= words
    hashes *= _MULTIPLIER
    hashes ^= hashes >> _SHIFT


def _overlapping_words(data: Any, start: int, stop: int) -> UInt64s:
    """The eight bytes from each place on as one little-endian word; padded, so that the last places have eight too."""
    padded = np.zeros(stop - start + 8, dtype=np.uint8)
    if stop > start:
        padded[: stop - start] = np.frombuffer(data, dtype=np.uint8)[start:stop]
    return np.ndarray(shape=(stop - start + 1,), dtype="<u8", buffer=padded.data, strides=(1,))
