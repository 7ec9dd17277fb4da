"""Benchmarks: what the product does on this machine, each figure beside floors measured in the same run."""
