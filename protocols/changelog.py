"""A task's state changes on their way into the log, under the tag `c/<task>`."""

from protocols.base import TaskContext
from sharedlog.log import Entry, Header, Kind


class Changelog:
    """Numbers what the state has captured. One entry holds the net changes of all stores since the last one."""

    def __init__(self, ctx: TaskContext) -> None:
        self._ctx = ctx
        self.tag = f"c/{ctx.name}"
        self.sequence = 0
        ctx.state.capture(True)

    def drain(self, *, transaction: int = 0) -> list[Entry]:
        """The changes since the last call: one entry, or none."""
        changes = self._ctx.state.take_changes()
        if changes is None:
            return []
        self.sequence += 1
        header = Header(
            kind=Kind.CHANGELOG,
            producer=self._ctx.name,
            instance=self._ctx.instance,
            sequence=self.sequence,
            transaction=transaction,
            time_us=self._ctx.now_us(),
        )
        return [Entry((self.tag,), header, changes)]
