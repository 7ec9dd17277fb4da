"""One module a noun of the command line; each holds a small typer application."""
