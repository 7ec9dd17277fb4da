"""The ledgers of `tests.ledger`, for the vectors that need one."""

from tests.ledger.ledgers import (  # noqa: F401  # pytest finds fixtures by name
    db,
    db_url,
    mariadb_ledger,
    mariadb_ledger_url,
    sqlite_ledger_url,
    sqlite_template,
)
