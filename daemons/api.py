"""sf-api: not wired yet."""

import argparse


def main() -> int:
    """Parse the arguments and say so."""
    argparse.ArgumentParser(prog="sf-api").parse_args()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
