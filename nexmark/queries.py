"""The eight queries as stage graphs. What they mean, to the row, is in `docs/dataflow.md` and the reference SQL.

Stages and repartition keys follow Table 3 of the Impeller paper. Every first stage projects what its query needs, so
that little travels; every result stream folds as its `Answer` says.
"""

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from dataflow.columns import schema_of
from dataflow.graph import Answer, Graph, GraphError, Logic, Stage, Stream
from dataflow.operators.aggregate import TableAggregate
from dataflow.operators.best import FINAL, Best, BestAggregate
from dataflow.operators.join import Side, TableJoin
from dataflow.operators.latest import LatestAggregate
from dataflow.operators.maximum import LocalMaximum, WindowMaximum
from dataflow.operators.stateless import Branch
from dataflow.operators.stream_join import StreamTableJoin
from dataflow.operators.window import WindowAggregate
from dataflow.partition import splitmix64
from nexmark import queries_steps as steps
from nexmark.events import EVENTS, numbers
from nexmark.parameters import Q1, Q2, Q3, Q4, Q5, Q6, Q7, Q8, Query


def build(params: Query, parallelism: int) -> Graph:
    """The graph of a query, with `parallelism` tasks per stage."""
    try:
        builder = _BUILDERS[type(params)]
    except KeyError:
        known = ", ".join(sorted(query.__name__ for query in _BUILDERS))
        raise GraphError(f"no graph for {type(params).__name__}; there are graphs for {known}") from None
    return builder(params).with_parallelism(parallelism)


def summary(batch: pa.RecordBatch) -> tuple[int, int]:
    """Count and hash sum of a batch of events, over the event numbers."""
    known = numbers(batch)
    return known.size, int(splitmix64(known).sum())


def q1(params: Q1) -> Graph:
    """Currency conversion: one stateless stage."""
    result = Stream(name="result", schema=steps.CONVERTED, identity=("number", "price"))
    convert = steps.Convert(rate_numerator=params.rate_numerator)
    return _graph(
        params,
        (result,),
        (_first("convert", ("result", convert)),),
        Answer(key=(), value=("number", "auction", "bidder", "price", "ts", "extra")),
    )


def q2(params: Q2) -> Graph:
    """Selection: one stateless stage."""
    result = Stream(name="result", schema=steps.SELECTED, identity=("number", "auction", "price"))
    select = steps.Select(modulus=params.modulus)
    return _graph(
        params,
        (result,),
        (_first("select", ("result", select)),),
        Answer(key=(), value=("number", "auction", "price")),
    )


def q3(params: Q3) -> Graph:
    """Local items: persons by id and auctions by seller → join."""
    join = StreamTableJoin(
        output="result",
        stream=Side(stream="auctions", key=("seller",), ints=("auction",), time="oldest_us"),
        table=Side(stream="persons", key=("person",), strings=("name", "city", "state"), time="oldest_us"),
        combine=steps.local_items,
    )
    streams = (
        Stream(name="persons", schema=steps.LOCAL_PERSONS, key="person", identity=("person",)),
        Stream(name="auctions", schema=steps.SELLERS, key="seller", identity=("auction", "seller")),
        Stream(name="result", schema=steps.LOCAL_ITEMS, identity=("auction",)),
    )
    stages = (
        _first(
            "split",
            ("persons", steps.LocalPersons(states=params.states)),
            ("auctions", steps.SellersOf(category=params.category)),
        ),
        _stage("join", ("persons", "auctions"), ("result",), join),
    )
    return _graph(params, streams, stages, Answer(key=("auction",), value=("name", "city", "state")))


def q4(params: Q4) -> Graph:
    """Average closing price per category: split → join by auction → best bid by auction → total by category."""
    total = TableAggregate(output="result", member="auction", group="category", value="price", final=FINAL)
    streams, stages = _closing_prices("category", params.grace_us, by_time=False)
    result = Stream(name="result", schema=total.schema, identity=("category", "total", "count"))
    return _graph(
        params,
        (*streams, result),
        (*stages, _stage("average", ("closing",), ("result",), total)),
        Answer(key=("category",), value=("total", "count")),
    )


def q5(params: Q5) -> Graph:
    """Hot items: split → count by (window, auction) → most bids by window."""
    count = WindowAggregate(
        output="counts",
        time="pane",
        keys=("auction",),
        sums=(("count", "events"),),
        window_us=params.window_us,
        slide_us=params.slide_us,
        grace_us=params.grace_us,
    )
    most = WindowMaximum(
        output="result",
        member="auction",
        rank="count",
        window_us=params.window_us,
        slide_us=params.slide_us,
        grace_us=params.grace_us,
    )
    streams = (
        Stream(name="bids", schema=steps.BID_COUNTS, key="auction", identity=("pane", "auction", "events")),
        Stream(name="counts", schema=count.schema, key="window", identity=("window", "auction", "count")),
        Stream(name="result", schema=most.schema, identity=("window", "auction", "count")),
    )
    stages = (
        _first("split", ("bids", steps.CountBids(slide_us=params.slide_us))),
        _stage("count", ("bids",), ("counts",), count),
        _stage("most", ("counts",), ("result",), most),
    )
    return _graph(params, streams, stages, Answer(key=("window", "auction"), value=("count",)))


def q6(params: Q6) -> Graph:
    """Average selling price per seller: split → join by auction → best bid by auction → latest ten by seller."""
    latest = LatestAggregate(
        output="result", member="auction", group="seller", value="price", time="ts", rows=params.rows
    )
    streams, stages = _closing_prices("seller", params.grace_us, by_time=True)
    result = Stream(name="result", schema=latest.schema, identity=("seller", "total", "count"))
    return _graph(
        params,
        (*streams, result),
        (*stages, _stage("average", ("closing",), ("result",), latest)),
        Answer(key=("seller",), value=("total", "count")),
    )


def q7(params: Q7) -> Graph:
    """Highest bids: each task's highest by window → highest of all by window."""
    local = LocalMaximum(
        output="bids",
        schema=steps.WINDOWED_BIDS,
        prepare=steps.WindowedBids(window_us=params.window_us),
        rank="price",
        window_us=params.window_us,
        grace_us=params.grace_us,
    )
    highest = WindowMaximum(
        output="result",
        member="number",
        rank="price",
        values=("auction", "bidder", "ts"),
        window_us=params.window_us,
        slide_us=params.window_us,
        grace_us=params.grace_us,
    )
    streams = (
        Stream(name="bids", schema=steps.WINDOWED_BIDS, key="window", identity=("number", "price")),
        Stream(name="result", schema=highest.schema, identity=("window", "number", "price")),
    )
    stages = (
        _stage("local", ("events",), ("bids",), local),
        _stage("highest", ("bids",), ("result",), highest),
    )
    answer = Answer(key=("window", "number"), value=("auction", "bidder", "price", "ts"))
    return _graph(params, streams, stages, answer)


def q8(params: Q8) -> Graph:
    """New sellers: persons by id and auctions by seller → join by (window, person)."""
    join = TableJoin(
        output="result",
        key=("window", "person"),
        left=Side(stream="persons", key=("window", "person"), strings=("name",)),
        right=Side(stream="auctions", key=("window", "seller")),
        window_us=params.window_us,
        grace_us=params.grace_us,
    )
    streams = (
        Stream(name="persons", schema=steps.NEW_PERSONS, key="person", identity=("window", "person")),
        Stream(name="auctions", schema=steps.NEW_SELLERS, key="seller", identity=("window", "seller", "oldest_us")),
        Stream(name="result", schema=join.schema, identity=("window", "person")),
    )
    stages = (
        _first(
            "split",
            ("persons", steps.NewPersons(window_us=params.window_us)),
            ("auctions", steps.NewSellers(window_us=params.window_us)),
        ),
        _stage("join", ("persons", "auctions"), ("result",), join),
    )
    return _graph(params, streams, stages, Answer(key=("window", "person"), value=("name",)))


def _closing_prices(kept: str, grace_us: int, *, by_time: bool) -> tuple[tuple[Stream, ...], tuple[Stage, ...]]:
    """The three stages that Q4 and Q6 share: the winning bid of every auction, by revisions, the last one final."""
    best = Best(key="auction", value="price", time="ts", kept=(kept,))
    winner = BestAggregate(output="closing", best=best, by_time=by_time)
    join = StreamTableJoin(
        output="joined",
        stream=Side(stream="bids", key=("auction",), ints=("price", "ts")),
        table=Side(stream="auctions", key=("auction",), ints=("expires", kept), time="oldest_us"),
        combine=best,
        expires="expires",
        final=best.final,
        grace_us=grace_us,
    )
    auctions = schema_of(ints=("auction", "expires", kept))
    streams = (
        Stream(name="bids", schema=steps.PRICED_BIDS, key="auction", identity=("auction", "price", "ts")),
        Stream(name="auctions", schema=auctions, key="auction", identity=("auction", "expires")),
        Stream(name="joined", schema=best.schema, key="auction", identity=("auction", "price", "ts", FINAL)),
        Stream(name="closing", schema=winner.schema, key=kept, identity=("auction", "price", "ts", FINAL)),
    )
    stages = (
        # Auctions first: a bid that finds its auction need not wait for it in the state.
        _first("split", ("auctions", steps.OpenAuctions(kept=kept)), ("bids", steps.priced_bids)),
        _stage("join", ("auctions", "bids"), ("joined",), join),
        _stage("best", ("joined",), ("closing",), winner),
    )
    return streams, stages


def _first(name: str, *routes: tuple[str, Callable[[pa.RecordBatch], pa.RecordBatch]]) -> Stage:
    """A stateless first stage that reads the events."""
    logic = Branch(routes=tuple((stream, (step,)) for stream, step in routes))
    return _stage(name, ("events",), tuple(stream for stream, _ in routes), logic)


def _stage(name: str, inputs: tuple[str, ...], outputs: tuple[str, ...], logic: Logic) -> Stage:
    return Stage(name=name, inputs=inputs, outputs=outputs, logic=logic)


def _graph(params: Query, streams: tuple[Stream, ...], stages: tuple[Stage, ...], answer: Answer) -> Graph:
    events = Stream(name="events", schema=EVENTS, summary=summary)
    return Graph(
        name=params.name,
        source="events",
        result="result",
        answer=answer,
        streams={stream.name: stream for stream in (events, *streams)},
        stages=stages,
    )


_BUILDERS: dict[type[Query], Callable[[Any], Graph]] = {
    Q1: q1,
    Q2: q2,
    Q3: q3,
    Q4: q4,
    Q5: q5,
    Q6: q6,
    Q7: q7,
    Q8: q8,
}
