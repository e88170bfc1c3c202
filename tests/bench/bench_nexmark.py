"""What the workload costs: generation, layouts of the input stream, bytes per event, fingerprints.

All numbers are CPU time of this one thread, the best of several repetitions: a shared machine can only make it worse.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nexmark.events import AUCTION, BID, PERSON, auctions, bids, count, pack, persons
from nexmark.fingerprint import fingerprint
from nexmark.generator import Generator
from nexmark.oracle import ANSWERS

KINDS = ((PERSON, persons), (AUCTION, auctions), (BID, bids))
FLUSH = 1000


def cpu_s(work: Callable[[], object], repetitions: int = 7, rounds: int = 1) -> float:
    """Least CPU seconds of one call."""
    best = float("inf")
    for _ in range(repetitions):
        started = time.process_time()
        for _ in range(rounds):
            work()
        best = min(best, (time.process_time() - started) / rounds)
    return best


def main() -> None:
    pa.set_cpu_count(1)
    generation()
    sizes()
    layouts(FLUSH)
    layouts(20_000)
    fingerprints()


def generation() -> None:
    print("generation, all fields, one core")
    print(f"  {'events per call':>16} {'M events/s':>11} {'with serialize':>15} {'of a core at 100k/s':>20}")
    generator = Generator(seed=7)
    generator.events(0, 1)
    for block in (500, 1000, 2000, 5000, 20_000, 50_000):
        rounds = max(1, 40_000 // block)
        bare = cpu_s(lambda b=block: generator.events(10**6, 10**6 + b), rounds=rounds)  # type: ignore[misc]
        wire = cpu_s(lambda b=block: generator.events(10**6, 10**6 + b).serialize(), rounds=rounds)  # type: ignore[misc]
        print(f"  {block:16,} {block / bare / 1e6:11.2f} {block / wire / 1e6:15.2f} {1e5 * wire / block:20.1%}")
    late = Generator(seed=7, out_of_order_group=100, late_fraction=0.02, late_max_us=1_000_000)
    seconds = cpu_s(lambda: late.events(10**6, 10**6 + 20_000))
    print(f"  {'20,000 disordered':>16} {0.02 / seconds:10.2f}\n")


def sizes() -> None:
    batch = Generator(seed=7).events(10**6, 10**6 + 20_000)
    print("bytes per event on the wire (with every field, and offsets of strings)")
    for _, take in KINDS:
        rows = take(batch)
        print(f"  {take.__name__:10} {rows.serialize().size / rows.num_rows:7.1f}")
    print(f"  {'stream':10} {batch.serialize().size / count(batch):7.1f}\n")


def layouts(events: int) -> None:
    batch = Generator(seed=7).events(10**6, 10**6 + events)
    kinds = tuple(take(batch) for _, take in KINDS)
    print(f"layouts of the one input stream, {events:,} events per batch, ns per event")
    print(f"  {'':24} {'pack':>8} {'serialize':>10} {'read':>8} {'take kinds':>11} {'bytes/event':>12}")
    for name, build, take in (
        ("lists in one row (used)", pack_lists, take_lists),
        ("dense union", pack_dense, take_dense),
        ("sparse struct columns", pack_sparse, take_sparse),
    ):
        packed = build(*kinds)
        wire = packed.serialize()
        read = pa.ipc.read_record_batch(wire, packed.schema)
        assert all(got.equals(rows) for got, rows in zip(take(read), kinds, strict=True)), name
        rounds = max(1, 20_000 // events)
        costs = [
            cpu_s(work, rounds=rounds) / events * 1e9
            for work in (
                lambda b=build: b(*kinds),  # type: ignore[misc]
                packed.serialize,
                lambda w=wire, s=packed.schema: pa.ipc.read_record_batch(w, s),  # type: ignore[misc]
                lambda t=take, r=read: t(r),  # type: ignore[misc]
            )
        ]
        print(
            f"  {name:24} {costs[0]:8.1f} {costs[1]:10.1f} {costs[2]:8.1f} {costs[3]:11.1f} {wire.size / events:12.1f}"
        )
    print()


def pack_lists(*kinds: Any) -> Any:
    return pack(*kinds)


def take_lists(batch: Any) -> Any:
    return persons(batch), auctions(batch), bids(batch)


def order_of(kinds: Any) -> Any:
    """Kind of each event in the order of event numbers."""
    numbers = np.concatenate([rows["number"].to_numpy() for rows in kinds])
    which = np.repeat(np.arange(3, dtype=np.int8), [rows.num_rows for rows in kinds])
    return which[np.argsort(numbers, kind="stable")]


def pack_dense(*kinds: Any) -> Any:
    which = order_of(kinds)
    offsets = np.empty(len(which), dtype=np.int32)
    for kind in range(3):
        places = np.flatnonzero(which == kind)
        offsets[places] = np.arange(len(places), dtype=np.int32)
    children = [rows.to_struct_array() for rows in kinds]
    union = pa.UnionArray.from_dense(pa.array(which), pa.array(offsets), children, ["person", "auction", "bid"])
    return pa.RecordBatch.from_arrays([union], names=["event"])


def take_dense(batch: Any) -> Any:
    union = batch.column(0)
    return tuple(pa.RecordBatch.from_struct_array(union.field(kind)) for kind in range(3))


def pack_sparse(*kinds: Any) -> Any:
    """One nullable struct column per kind, as long as the batch."""
    which = order_of(kinds)
    columns = []
    for kind, rows in enumerate(kinds):
        mine = which == kind
        index = pa.array(np.cumsum(mine) - 1, mask=~mine)
        columns.append(rows.to_struct_array().take(index))
    return pa.RecordBatch.from_arrays(columns, names=["person", "auction", "bid"])


def take_sparse(batch: Any) -> Any:
    return tuple(pa.RecordBatch.from_struct_array(batch.column(kind).drop_null()) for kind in range(3))


def fingerprints() -> None:
    rows = bids(Generator(seed=7).events(0, 20_000))
    rows = rows.set_column(4, "price", pc.multiply(rows["price"], 908))
    for name in ("q1", "q2"):
        seconds = cpu_s(lambda n=name: fingerprint(rows, ANSWERS[n].value))  # type: ignore[misc]
        print(f"fingerprint of {name} rows: {rows.num_rows / seconds / 1e6:.1f} M rows/s")


if __name__ == "__main__":
    main()
