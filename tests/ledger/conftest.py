"""The fixtures of `tests.ledger.ledgers`, for every test of this layer."""

from tests.ledger.ledgers import (  # noqa: F401  # pytest finds fixtures by name
    db,
    db_url,
    maria,
    mariadb_ledger,
    mariadb_ledger_url,
    sqlite_ledger_url,
    sqlite_template,
)
