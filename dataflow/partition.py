"""Which task a row goes to, and what tells rows apart: stable hashes, the same in every process and every run."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Ints = npt.NDArray[np.int64]

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def splitmix64(keys: Ints) -> npt.NDArray[np.uint64]:
    """The finaliser of SplitMix64: every bit of a key moves every bit of its hash."""
    mixed: npt.NDArray[np.uint64] = keys.view(np.uint64) + _GAMMA
    mixed ^= mixed >> np.uint64(30)
    mixed *= _FIRST
    mixed ^= mixed >> np.uint64(27)
    mixed *= _SECOND
    mixed ^= mixed >> np.uint64(31)
    return mixed


def substream_of(keys: Ints, n: int) -> npt.NDArray[np.int64]:
    """The substream, 0 … n−1, of every key. Uses the hash's upper half, so tables may use the lower one."""
    upper = splitmix64(keys) >> np.uint64(32)
    return ((upper * np.uint64(n)) >> np.uint64(32)).view(np.int64)


def partition(batch: pa.RecordBatch, key: str, n: int) -> list[pa.RecordBatch | None]:
    """Cut a batch into its n substreams, keeping the order of rows; None where there are no rows."""
    if n == 1:
        return [batch if batch.num_rows else None]
    substreams = substream_of(batch.column(key).to_numpy(), n)
    counts = np.bincount(substreams, minlength=n).tolist()
    if max(counts, default=0) == batch.num_rows:
        return [batch if count else None for count in counts]
    # A stable sort of small integers is a radix sort: one pass, then every substream is a slice of the result.
    order = np.argsort(substreams.astype(np.uint8 if n <= 256 else np.uint16), kind="stable")
    ordered = batch.take(pa.array(order))
    parts: list[pa.RecordBatch | None] = []
    start = 0
    for count in counts:
        parts.append(ordered.slice(start, count) if count else None)
        start += count
    return parts


def row_hash_sum(batch: pa.RecordBatch | pa.Table, columns: Sequence[str]) -> int:
    """The sum of the rows' 64-bit hashes over the given integer columns, wrapping around: equal multisets of rows
    have equal sums, in whatever order and batches they come."""
    mixed = np.full(batch.num_rows, _GAMMA, np.uint64)
    for name in columns:
        column = batch.column(name).to_numpy()
        mixed ^= column.view(np.uint64) if column.dtype.itemsize == 8 else column.astype(np.uint64)
        mixed *= _FIRST
        mixed ^= mixed >> np.uint64(32)
    mixed *= _SECOND
    mixed ^= mixed >> np.uint64(29)
    return int(mixed.sum(dtype=np.uint64))
