"""Row counts and hash sums on both ends of every edge.

Idempotent queries hide duplicates, so every role counts what it sent and what it took. The counts are part of a
task's recovered state; END carries them downstream, and at last the sink holds both ends of every edge.
"""

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dataflow.state import CounterStore


class Edges:
    """`o/<producer>/<tag>` counts what was sent, `i/<consumer>/<tag>/<producer>` what was taken."""

    def __init__(self, role: str, store: CounterStore | None = None) -> None:
        self._role = role
        self.store = store if store is not None else CounterStore()

    def sent(self, tag: str, rows: int, hash_sum: int) -> None:
        self.store.add(f"o|{self._role}|{tag}", rows, hash_sum)

    def taken(self, tag: str, producer: str, rows: int, hash_sum: int) -> None:
        self.store.add(f"i|{self._role}|{tag}|{producer}", rows, hash_sum)

    def total_sent(self) -> int:
        return self._total(f"o|{self._role}|")

    def total_taken(self) -> int:
        return self._total(f"i|{self._role}|")

    def _total(self, prefix: str) -> int:
        return sum(rows for name, (rows, _) in self.store.items().items() if name.startswith(prefix))

    def dump(self) -> dict[str, Sequence[int]]:
        return {name: list(value) for name, value in self.store.items().items()}

    def load(self, counts: Mapping[str, Sequence[int]]) -> None:
        """Take over final counts of others, or one's own after a restart."""
        for name, (rows, hash_sum) in counts.items():
            self.store.set(name, rows, hash_sum)

    def encode(self) -> bytes:
        return json.dumps(self.dump(), separators=(",", ":")).encode()

    def decode(self, body: bytes) -> None:
        self.load(json.loads(body))


class Mismatch(NamedTuple):
    """An edge whose ends disagree, in rows. Equal numbers mean that the rows themselves differ."""

    producer: str
    tag: str
    consumer: str
    sent: int
    taken: int

    def __str__(self) -> str:
        return f"{self.producer} → {self.tag} → {self.consumer}: sent {self.sent} rows, taken {self.taken}"


def mismatches(counts: Mapping[str, Sequence[int]]) -> list[Mismatch]:
    """Edges whose ends do not agree on count and hash sum."""
    found = []
    taken = {}
    for name, value in counts.items():
        if name.startswith("i|"):
            _, consumer, tag, producer = name.split("|")
            taken[f"o|{producer}|{tag}"] = (consumer, list(value))
    sent = {name: list(value) for name, value in counts.items() if name.startswith("o|")}
    for name in sorted(sent.keys() | taken.keys()):
        _, producer, tag = name.split("|")
        consumer, received = taken.get(name, ("nobody", [0, 0]))
        if sent.get(name, [0, 0]) != received:
            found.append(Mismatch(producer, tag, consumer, sent.get(name, [0, 0])[0], received[0]))
    return found
