"""A protocol's coordinator as a role of the run."""

from collections.abc import Mapping

from protocols.base import Coordinator
from runners.role import Role


class CoordinatorRole(Role):
    """Coordinators recover inside their first steps and are never the reason why a job goes on."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self.steps = 0

    def recover(self) -> None:
        """The coordinator reads its own log when it is first stepped."""

    def step(self, now_ms: float) -> bool:
        moved = self._coordinator.step(now_ms)
        self.steps += moved
        return moved

    def inputs(self) -> Mapping[str, int]:
        return self._coordinator.inputs()

    def bound(self) -> int:
        return self._coordinator.bound()

    def finished(self) -> bool:
        return True

    def report(self) -> dict[str, object]:
        return {"steps": self.steps}
