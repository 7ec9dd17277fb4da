"""The command line: `fleet`, and what `./dev` starts."""
