"""sf-reconciler: not wired yet."""

import argparse


def main() -> int:
    """Parse the arguments and say so."""
    argparse.ArgumentParser(prog="sf-reconciler").parse_args()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
