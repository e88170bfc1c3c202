"""What all long-lived parts of a run have in common: they are stepped, they wait, and they report."""

from abc import ABC, abstractmethod
from collections.abc import Mapping


class Role(ABC):
    """A step machine. It never blocks and never sleeps; whoever drives it does."""

    @abstractmethod
    def recover(self) -> None:
        """Called once, before the first step."""

    @abstractmethod
    def step(self, now_ms: float) -> bool:
        """A bounded amount of work; whether there was any."""

    @abstractmethod
    def inputs(self) -> Mapping[str, int]:
        """The tags that wake this role up, and the positions after which."""

    def due_ms(self, now_ms: float) -> float:
        """How long it may sleep at most."""
        return 5.0

    @abstractmethod
    def bound(self) -> int:
        """The smallest LSN that this role or its successor may still read."""

    def ready(self) -> bool:
        """Whether it has recovered; some need several steps for that."""
        return True

    def watermark(self) -> int:
        """How far event time has come here, as far as this role may act on it; 0 where there is none."""
        return 0

    @abstractmethod
    def finished(self) -> bool:
        """Nothing is left to do but to answer others, until the job is done."""

    @abstractmethod
    def report(self) -> dict[str, object]:
        """Counters since this instance began, for the display and the run directory."""

    def result(self) -> dict[str, object]:
        """What is delivered once, at the end, because it is too large for a report."""
        return {}
