"""What the Impeller paper (EuroSys '25) published, from 13 machines (c5d.2xlarge) and a log with three replicas.

Shapes and ratios can be compared with ours, times cannot. What it says of recovery (Table 4) is with the claims.
"""

# Table 2: (p50, p99) in µs from append to read in another place, 16 KiB, by appends/s.
LOG_LATENCY_US: dict[str, dict[int, tuple[int, int]]] = {
    "Boki": {10: (2714, 3711), 50: (2604, 3832), 100: (2546, 3596)},
    "Kafka": {10: (2074, 4448), 50: (1596, 3463), 100: (1449, 2942)},
}

# Figure 7, commits every 100 ms: (p50, p99) in ms by query and events/s.
Pair = tuple[int, int]
LATENCY_MS: dict[str, dict[int, dict[str, Pair]]] = {
    "q1": {256_000: {"progress_marking": (8, 16), "transactions": (10, 94), "aligned_checkpoint": (9, 25)}},
    "q3": {
        256_000: {"progress_marking": (93, 152), "transactions": (88, 154), "aligned_checkpoint": (164, 1471)},
        512_000: {"progress_marking": (119, 475), "transactions": (354, 8239), "aligned_checkpoint": (534, 2761)},
    },
    "q4": {3_000: {"progress_marking": (167, 268), "transactions": (167, 269), "aligned_checkpoint": (142, 596)}},
    "q5": {
        96_000: {"progress_marking": (101, 303), "transactions": (107, 310), "aligned_checkpoint": (53, 323)},
        192_000: {"progress_marking": (151, 367), "transactions": (170, 430), "aligned_checkpoint": (122, 759)},
    },
    "q6": {3_000: {"progress_marking": (185, 411), "transactions": (193, 407), "aligned_checkpoint": (196, 1584)}},
    "q7": {64_000: {"progress_marking": (115, 191), "transactions": (120, 212), "aligned_checkpoint": (1033, 3709)}},
    "q8": {80_000: {"progress_marking": (105, 170), "transactions": (109, 229), "aligned_checkpoint": (118, 1217)}},
}

# Figure 8, Q4 at 3,000 events/s: (p50, p99) in ms by commit interval.
COMMIT_INTERVAL_MS: dict[int, dict[str, Pair]] = {
    10: {"progress_marking": (48, 114), "transactions": (69, 358)},
    25: {"progress_marking": (67, 121), "transactions": (84, 138)},
    50: {"progress_marking": (98, 167), "transactions": (117, 185)},
    100: {"progress_marking": (167, 268), "transactions": (167, 269)},
}

# Figure 9, Q5, flushes and commits every 100 ms: progress marking as a multiple of unsafe, least and most.
COST_FLUSH_INTERVAL_MS = 100
COST_OF_UNSAFE: dict[int, tuple[float, float]] = {50: (1.2, 2.0), 99: (1.0, 1.8)}
