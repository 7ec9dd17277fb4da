"""Strategies compared offline: the production engine decides, on a virtual clock, against a ledger in memory.

Promise: no clock, no randomness, no input or output. The same scenario, strategy and seed give the same figures.
"""
