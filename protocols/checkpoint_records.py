"""What the coordinator of aligned checkpoints and the tasks write for each other: control records and barriers."""

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from protocols.base import Context
from sharedlog.log import Entry, Header, Kind, Record

COORDINATOR = "coordinator/0"
CONTROL = f"x/{COORDINATOR}"
"""The coordinator's log: everything that it may have to recount."""
ORDERS = f"x/{COORDINATOR}/orders"
"""EPOCH and COMPLETE alone, so that the newest of them is found at once: it states where the job stands."""
EPOCH_COUNTER = "epoch"


class Control(enum.StrEnum):
    JOIN = "join"  # a task: this instance wants to work in the next epoch
    EPOCH = "epoch"  # the coordinator: everyone starts again from this checkpoint
    ACK = "ack"  # a task: my part of the checkpoint is durable
    FAILED = "failed"  # a task: my part of the checkpoint could not be stored
    ENDED = "ended"  # a task: my END is in the log
    COMPLETE = "complete"  # the coordinator: the checkpoint counts
    ABANDON = "abandon"  # the coordinator: the checkpoint will never count


class CheckpointId(NamedTuple):
    """Never reused: an epoch is opened once, and numbers only rise inside it."""

    epoch: int
    number: int


NO_CHECKPOINT = CheckpointId(0, 0)


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Where the job stands. EPOCH and COMPLETE state all of it, so that older control records can be trimmed."""

    epoch: int = 0
    number: int = 0  # the last checkpoint of this epoch that was decided
    instances: Mapping[str, int] = field(default_factory=dict)  # the only ones that work in this epoch
    joined: Mapping[str, int] = field(default_factory=dict)  # the newest that asked for an epoch
    checkpoint: CheckpointId = NO_CHECKPOINT  # the last complete one
    previous: CheckpointId = NO_CHECKPOINT
    barrier_lsn: int = 0  # of the last complete one, in all source substreams
    final: bool = False  # the last complete one holds the END of every task


def control_entry(
    ctx: Context, tags: tuple[str, ...], what: Control, *, epoch: int = 0, number: int = 0, **content: object
) -> Entry:
    header = Header(
        kind=Kind.COORDINATION,
        producer=ctx.name,
        instance=ctx.instance,
        epoch=epoch,
        transaction=number,
        time_us=ctx.now_us(),
    )
    return Entry(tags, header, json.dumps({"control": what, **content}, separators=(",", ":")).encode())


def barrier_entry(ctx: Context, tags: tuple[str, ...], checkpoint: CheckpointId) -> Entry:
    header = Header(
        kind=Kind.MARKER,
        producer=ctx.name,
        instance=ctx.instance,
        epoch=checkpoint.epoch,
        transaction=checkpoint.number,
        time_us=ctx.now_us(),
    )
    return Entry(tags, header)


def control_of(record: Record) -> tuple[Control, dict[str, object]]:
    content = json.loads(record.body.to_pybytes())
    return Control(content["control"]), content


def standing_of(content: Mapping[str, object]) -> Standing:
    """The standing that an EPOCH or a COMPLETE states."""
    fields = content["standing"]
    assert isinstance(fields, dict)
    return Standing(
        **{
            **fields,
            "checkpoint": CheckpointId(*fields["checkpoint"]),
            "previous": CheckpointId(*fields["previous"]),
        }
    )


def snapshot_key(checkpoint: CheckpointId, task: str) -> str:
    return f"checkpoint/{checkpoint.epoch}/{checkpoint.number}/{task}"


def checkpoint_of(key: str) -> CheckpointId:
    _, epoch, number, _ = key.split("/", 3)
    return CheckpointId(int(epoch), int(number))
