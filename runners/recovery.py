"""When had a job caught up again? Judged from outside: by how far behind the present a reader of the results is."""

from collections.abc import Sequence

BEFORE_US = 5_000_000
LEAST_SAMPLES = 5
STEADY_US = 300_000
SLACK_MS = 20.0


def band_ms(samples: Sequence[tuple[int, float]], strike_us: int) -> float | None:
    """The most that the reader was behind in the seconds before the fault, and a little more."""
    before = [lag for time_us, lag in samples if strike_us - BEFORE_US <= time_us < strike_us]
    return 1.1 * max(before) + SLACK_MS if len(before) >= LEAST_SAMPLES else None


def caught_up_us(samples: Sequence[tuple[int, float]], strike_us: int, restored_us: int, until_us: int) -> int | None:
    """The first moment since the restoration from which the lag stays in its band for a while.

    `samples` are (time, lag in ms), in order. None when that did not happen before `until_us` (the next fault), or
    when nothing is known of the time before the fault.
    """
    band = band_ms(samples, strike_us)
    if band is None or not restored_us:
        return None
    since = 0
    for time_us, lag in samples:
        if time_us < restored_us:
            continue
        if time_us >= until_us:
            break
        if lag > band:
            since = 0
            continue
        since = since or time_us
        if time_us - since >= STEADY_US:
            return since
    last = samples[-1][0] if samples else 0
    return since if since and last < until_us and last - since >= 0 else None
