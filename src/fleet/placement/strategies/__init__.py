"""One file a strategy; `load_aware.py` is the strategy `load-aware`. `fleet.placement.stage` walks this folder."""
