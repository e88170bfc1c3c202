"""The batch answer to a query over a whole workload, computed by Spark SQL.

Spark's tasks make the events themselves, block by block, from the same workload that the sources emit; the driver
sees nothing but the answer. `ANSWERS` says how an answer is compared: last value per key, or as a multiset, for which
`fingerprint_of` gives two numbers without collecting any rows.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from nexmark import events
from nexmark.errors import ParameterError
from nexmark.fingerprint import Fingerprint, fingerprint
from nexmark.parameters import QUERIES, Query
from nexmark.sql import ANSWERS, DEFINITIONS, sql
from nexmark.workload import UNBOUNDED, Workload

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["ANSWERS", "answer", "answer_table", "fingerprint_of", "sql", "view"]

BLOCK = 16_384

_KINDS: dict[str, tuple[pa.Schema, Callable[[pa.RecordBatch], pa.RecordBatch]]] = {
    "person": (events.PERSON, events.persons),
    "auction": (events.AUCTION, events.auctions),
    "bid": (events.BID, events.bids),
}


def answer(spark: "SparkSession", query_name: str, params: Query, source: Workload) -> "DataFrame":
    """The answer as a DataFrame with the columns of `ANSWERS[query_name]`. Nothing is computed before it is used.

    `params` must be the parameters of that query. The workload must be bounded.
    """
    expected = QUERIES.get(query_name)
    if expected is None:
        raise ParameterError(f"oracle: no query {query_name!r}; there are {', '.join(QUERIES)}")
    if not isinstance(params, expected):
        raise ParameterError(f"oracle: {query_name} needs parameters of {expected.__name__}, got {params!r}")
    if source.total >= UNBOUNDED:
        raise ParameterError("oracle: the workload has no end; set its total")
    for kind, columns in DEFINITIONS[query_name].reads.items():
        view(spark, kind, source, columns).createOrReplaceTempView(kind)
    contract = ANSWERS[query_name]
    return spark.sql(sql(params)).select(*contract.key, *contract.value)


def answer_table(spark: "SparkSession", query_name: str, params: Query, source: Workload) -> pa.Table:
    """The answer, collected and sorted by all its columns: for tests and small results."""
    table = answer(spark, query_name, params, source).toArrow()
    return table.sort_by([(name, "ascending") for name in table.column_names])


def fingerprint_of(frame: "DataFrame", columns: Sequence[str]) -> Fingerprint:
    """The fingerprint of a multiset answer, computed where the rows are."""
    names = list(columns)
    schema = pa.schema([("rows", pa.int64()), ("digest", pa.int64())])

    def summarise(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        part = Fingerprint.combine(fingerprint(batch, names) for batch in batches)
        digest = np.array([part.digest], dtype=np.uint64).view(np.int64)
        yield pa.RecordBatch.from_arrays([pa.array([part.rows]), pa.array(digest)], schema=schema)

    parts = frame.select(*names).mapInArrow(summarise, "rows bigint, digest bigint").collect()
    return Fingerprint.combine(Fingerprint(row["rows"], row["digest"]) for row in parts)


def view(spark: "SparkSession", kind: str, source: Workload, columns: Sequence[str]) -> "DataFrame":
    """One kind of events as a DataFrame, made by Spark's tasks."""
    schema, take = _KINDS[kind]
    wanted = list(columns)
    total = source.total

    def produce(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for block in batch.column(0).to_pylist():
                rows = take(source.events(block * BLOCK, min((block + 1) * BLOCK, total)))
                yield rows.select(wanted)

    block_count = -(-total // BLOCK)
    partitions = max(1, min(block_count, 4 * spark.sparkContext.defaultParallelism))
    frame: Any = spark.range(0, block_count, 1, partitions)
    return frame.mapInArrow(produce, ", ".join(f"{name} {_ddl(schema.field(name).type)}" for name in wanted))


def _ddl(kind: pa.DataType) -> str:
    return "bigint" if pa.types.is_int64(kind) else "string"
