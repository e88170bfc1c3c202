"""Heartbeats, counters and trim bounds of all roles, through the log like everything else.

A role appends a small report now and then. The supervisor reads them: a role that falls silent is hung, the counters
feed the display and the run directory, and the least bound is where the log may be trimmed.
"""

import contextlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from protocols.base import Context
from protocols.outbox import Writer
from runners.plan import REPORTS
from runners.role import Role
from sharedlog.errors import LogFull
from sharedlog.log import Entry, Header, Kind, SharedLog


class Reporter:
    """The role's side. Unconditional: a stale report only makes trimming more careful."""

    def __init__(self, ctx: Context, role: Role, pid: int, interval_ms: float) -> None:
        self._ctx = ctx
        self._role = role
        self._pid = pid
        self._interval_ms = interval_ms
        self._sent_ms = -1e18
        self._writer = Writer(ctx, conditional=False)

    def step(self, now_ms: float, *, cpu_s: float = 0.0) -> None:
        if now_ms - self._sent_ms < self._interval_ms:
            return
        self._sent_ms = now_ms
        content = {
            "pid": self._pid,
            "bound": self._role.bound(),
            "finished": self._role.finished(),
            "cpu_s": cpu_s,
            "written": self._ctx.written,
            "measured": self._ctx.measured,
            **self._role.report(),
        }
        header = Header(Kind.REPORT, self._ctx.name, self._ctx.instance, time_us=self._ctx.now_us())
        body = json.dumps(content, separators=(",", ":")).encode()
        with contextlib.suppress(LogFull):  # a report less; whoever has real work to write will notice
            self._writer.append([Entry((REPORTS,), header, body)])


@dataclass(frozen=True, kw_only=True)
class Report:
    role: str
    instance: int
    time_us: int
    content: dict[str, Any]


@dataclass
class Reports:
    """The supervisor's side: everything reported so far, and the newest of each role."""

    log: SharedLog
    position: int = 0
    newest: dict[str, Report] = field(default_factory=dict)
    history: list[Report] = field(default_factory=list)
    keep_history: bool = True

    def poll(self) -> list[Report]:
        """Reports that arrived since the last call."""
        arrived = []
        while records := self.log.read(REPORTS, self.position, max_bytes=1 << 20):
            for record in records:
                header = record.header
                report = Report(
                    role=header.producer,
                    instance=header.instance,
                    time_us=header.time_us,
                    content=json.loads(record.body.to_pybytes()),
                )
                known = self.newest.get(report.role)
                if known is None or report.instance >= known.instance:
                    self.newest[report.role] = report
                arrived.append(report)
            self.position = records[-1].lsn
        if self.keep_history:
            self.history.extend(arrived)
        return arrived

    def trim(self, roles: Iterable[str]) -> int:
        """Cut what nobody needs any more; returns the bound. A role that has not reported needs everything.

        Bounds only rise: they are derived from what is committed. So an old report is safe, only late.
        """
        bounds = [self.newest[role].content["bound"] if role in self.newest else 0 for role in roles]
        bound = min([*bounds, self.position + 1])
        if bound > self.log.first():
            self.log.trim(bound)
        return bound
