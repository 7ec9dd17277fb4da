"""The pure core: (request, snapshot, seed) -> Decision. No I/O, no clock, no randomness of its own."""
