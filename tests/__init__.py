"""The tests: one folder a layer, named for what its tests need and prove (CONTRIBUTING.md)."""
