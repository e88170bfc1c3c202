"""What can go wrong in a simulated schedule, as plain values: a seed makes a list, and a list can be shortened."""

import enum
from dataclasses import dataclass


class Action(enum.Enum):
    CRASH_BEFORE = "crash before"
    CRASH_AFTER = "crash after"
    PAUSE = "pause"
    ZOMBIE = "zombie"
    FAIL_UPLOAD = "fail upload"


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Strikes a role once, at an operation not before `at_ms`.

    `operation` waits for one of that kind (for a while, then takes any), `skip` lets so many pass. `restarted` waits
    for a second instance, so that the fault hits a recovery; `ended` waits until the role has nothing left to publish.
    A pause lasts `delay_ms`; under ZOMBIE a successor starts meanwhile, `successor_ms` after the pause began.
    """

    action: Action
    role: str
    at_ms: float = 0.0
    operation: str | None = None
    skip: int = 0
    restarted: bool = False
    ended: bool = False
    delay_ms: float = 0.0
    successor_ms: float = 0.0
