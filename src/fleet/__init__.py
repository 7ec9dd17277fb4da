"""fleet: choose a node for an instance, claim its capacity exactly once, and say why."""

__version__ = "0.1.0"
