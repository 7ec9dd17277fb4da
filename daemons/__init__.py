"""Which processes exist: one small file each, installed as ``sf-<name>`` (docs/adr/0001-packaging.md)."""
