"""Values and laws of the fleet: imports nothing of ours, performs no I/O, knows no clock."""
