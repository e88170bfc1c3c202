"""Two-phase-commit transactions (Kafka Streams §4.2, Impeller §3.6): output, changes and positions count together.

A task registers the substreams that it is about to write to with its coordinator, appends, and asks for the commit.
It has its answer when the coordinator has written PREPARE and then goes on; COMMIT reaches the substreams one by one
in the background. What it makes meanwhile stays in memory, because its next transaction begins after COMPLETE.

Registration is lazy, as in Kafka: a flush registers the substreams that it touches, the first one also changelog and
task log. Registering all outputs at once would save a round trip now and then, but every registered substream costs
an append in the second phase, and those are what this protocol pays for.

The task's own appends are unconditional, unlike everybody else's: the coordinator fences, as a Kafka epoch does. An
entry of a zombie is registered, hence aborted, and what comes after ABORT is dropped by every reader.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from protocols.base import (
    Context,
    Coordinator,
    Guarantee,
    Job,
    Observer,
    Protocol,
    TaskContext,
    TaskProtocol,
    require,
)
from protocols.transaction_coordinator import TransactionCoordinator
from protocols.transaction_messages import coordinator_of
from protocols.transaction_reader import TransactionInbox
from protocols.transaction_task import TransactionTask


@dataclass(frozen=True, kw_only=True)
class Transactions(Protocol):
    guarantee: ClassVar[Guarantee] = Guarantee.EXACTLY_ONCE

    commit_interval_ms: float = 100
    snapshot_interval_ms: float = 10_000
    transaction_timeout_ms: float = 10_000
    repeat_interval_ms: float = 100
    restate_interval_ms: float = 1_000
    buffer_bytes: int = 4 * 1024 * 1024
    coordinator_count: int = 1

    def __post_init__(self) -> None:
        who = "transactions"
        for name in (
            "commit_interval_ms",
            "repeat_interval_ms",
            "restate_interval_ms",
            "buffer_bytes",
        ):
            value = getattr(self, name)
            require(value > 0, who, f"{name} is {value} and must be positive")
        count = self.coordinator_count
        require(
            isinstance(count, int) and 1 <= count <= 1024, who, f"coordinator_count is {count}; use a number up to 1024"
        )
        snapshots = self.snapshot_interval_ms
        require(snapshots >= 0, who, f"snapshot_interval_ms is {snapshots}; use a positive one, or 0 for no snapshots")
        require(
            self.transaction_timeout_ms > self.commit_interval_ms,
            who,
            f"transaction_timeout_ms is {self.transaction_timeout_ms}, so that no transaction could stay open for"
            f" commit_interval_ms={self.commit_interval_ms}; make it several times as long",
        )

    def pins_log(self) -> bool:
        return not self.snapshot_interval_ms

    def task(self, ctx: TaskContext) -> TaskProtocol:
        return TransactionTask(
            ctx,
            coordinator=coordinator_of(ctx.name, self.coordinator_count),
            commit_interval_ms=self.commit_interval_ms,
            snapshot_interval_ms=self.snapshot_interval_ms,
            repeat_interval_ms=self.repeat_interval_ms,
            restate_interval_ms=self.restate_interval_ms,
            buffer_bytes=self.buffer_bytes,
        )

    def observer(self, ctx: Context) -> Observer:
        return TransactionInbox(ctx, ctx.job.sink_inputs)

    def coordinators(self, job: Job) -> Sequence[str]:
        return [f"coordinator/{index}" for index in range(self.coordinator_count)]

    def coordinator(self, ctx: Context) -> Coordinator:
        return TransactionCoordinator(ctx, self.transaction_timeout_ms, self.restate_interval_ms)
