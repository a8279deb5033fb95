"""Trials and winners of any family's parts, at points with tokens"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

TRIALS = ["run_id", "part", "batch_size", "new_tokens", "cached_tokens", "config_key"]
WINNERS = [
    "environment_id",
    "problem_id",
    "status",
    "batch_size",
    "new_tokens",
    "cached_tokens",
    "part",
]


def upgrade() -> None:
    _widen("trials", "uq_trials_run_id_gemm_batch_size_config_key", TRIALS)
    _widen("winners", "uq_winners_environment_id_problem_id_status_batch_size_gemm", WINNERS)


def _widen(table: str, old: str, unique: list[str]) -> None:
    # Renamed first: a batch of SQLite's copies the table, and takes columns by their new names.
    op.alter_column(table, "gemm", new_column_name="part")
    with op.batch_alter_table(table) as batch:
        for name in ("new_tokens", "cached_tokens"):
            batch.add_column(sa.Column(name, sa.Integer(), nullable=False, server_default="0"))
        batch.drop_constraint(op.f(old), type_="unique")
        # Named by hand: PostgreSQL's names end after 63 characters.
        batch.create_unique_constraint(f"uq_{table}_place", unique)
