"""What a source needs to know of its input, whether the input is generated or replayed.

Events have *positions* 0, 1, 2, … in the order of emission. The event at a position, and the moment at which it is
due, are pure functions of the workload. So any number of sources share one stream, and a restarted one goes on
anywhere. An event's *number* is its identity; it equals the position unless the workload is out of order.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nexmark.errors import ParameterError

Int64s = npt.NDArray[np.int64]

UNBOUNDED = 2**62
"""`total` of a stream without an end."""

END_OF_TIME = 2**62
"""The watermark after the last event: nothing more will come."""


class Workload(ABC):
    """A seekable stream of events. Picklable: workers receive the description and open what they need themselves."""

    @property
    @abstractmethod
    def total(self) -> int:
        """Number of events; `UNBOUNDED` if there is no end."""

    @property
    @abstractmethod
    def base_time_us(self) -> int:
        """Event time of offset 0. Where t0 is the wall time of offset 0, t0 + ts − base_time_us is an intended time."""

    @property
    @abstractmethod
    def timestamps_are_intended(self) -> bool:
        """Whether every event is due exactly at its own ts, so that latency may be measured from ts.

        False under deliberate disorder or lateness (events are then due *after* their ts), and for a replay at any
        speed but the recorded one.
        """

    @abstractmethod
    def events(self, start: int, stop: int) -> pa.RecordBatch:
        """Events at the positions [start, stop), as one batch of `nexmark.events.EVENTS`."""

    @abstractmethod
    def offset_us(self, positions: Int64s) -> Int64s:
        """When the events at these positions are due, from the start of the stream. Never falls with the position."""

    @abstractmethod
    def count_before(self, offset_us: int) -> int:
        """How many events are due before an offset: the positions [0, count_before(t)) are to be emitted by t."""

    @abstractmethod
    def watermark_after(self, stop: int) -> int:
        """Least event time among the positions ≥ stop, exactly; `END_OF_TIME` if there are none."""


def blocks(source: int, sources: int, block_size: int, total: int, *, after: int = 0) -> Iterator[tuple[int, int]]:
    """Position ranges of one of several sources: blocks source, source + sources, … of the stream.

    `after` resumes: positions below it were emitted, so a block that contains it is cut there.
    """
    if not 0 <= source < sources or block_size < 1:
        raise ParameterError(
            f"blocks: need 0 <= source < sources and block_size >= 1, got source={source} sources={sources} "
            f"block_size={block_size}"
        )
    stride = sources * block_size
    start = source * block_size + max(0, after - (source + 1) * block_size + stride) // stride * stride
    while start < total:
        yield max(start, after), min(start + block_size, total)
        start += stride
