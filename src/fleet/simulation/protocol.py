"""How long the steps of a placing take, on the virtual clock. All times in microseconds.

Promise: only this differs from the service, whose walk and numbers are used as they are (`placement/walk.py`). The
values are those of the published benchmarks, rounded, and only decide how much requests overlap.
"""

from __future__ import annotations

from typing import Final

from fleet.placement.walk import FINAL_WAIT_SECONDS

SECOND_US: Final = 1_000_000

FINAL_WAIT_US: Final = round(FINAL_WAIT_SECONDS * SECOND_US)

QUICK_US: Final = 10_000
"""Counters read less than this ago serve the next decision too."""

READ_US: Final = 1_000
"""Reading the counters that changed."""

DECIDE_US: Final = 1_000
"""Deciding on what was read."""

HOLD_US: Final = 3_000
"""An admission holds its node's row from the guarded update to the commit."""

CLUSTER_HOLD_US: Final = 400
"""Of that the last part holds the cluster's row, the only hot one: admissions pass it one after the other."""

RELEASE_HOLD_US: Final = 2_000
PUBLISH_HOLD_US: Final = 1_000
BUSY_US: Final = 500
"""A try that finds the row locked."""

REFUSED_US: Final = 1_500
"""A try that the guard refuses, with reading the figures."""

QUEUE_RETRY_US: Final = 15 * SECOND_US
"""How often a request that waits for capacity is tried again."""
