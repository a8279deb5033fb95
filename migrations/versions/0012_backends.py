"""The backend of each trial, and what runs without this program beside each winner"""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"

PLACE = ["run_id", "part", "batch_size", "new_tokens", "cached_tokens", "config_key"]
OWN = ("shipped", "default")  # the engine's own file comes first


def upgrade() -> None:
    with op.batch_alter_table("trials") as batch:
        batch.add_column(sa.Column("backend", sa.Text(), server_default="triton", nullable=False))
        batch.drop_constraint("uq_trials_place", type_="unique")
        batch.create_unique_constraint("uq_trials_place", [*PLACE, "backend"])
    with op.batch_alter_table("winners") as batch:
        batch.add_column(sa.Column("without_us", sa.Text(), server_default="", nullable=False))
        batch.add_column(sa.Column("over", sa.Text(), server_default="", nullable=False))
        batch.add_column(sa.Column("over_us", sa.Double()))
    _fill_in()


def _fill_in() -> None:
    """Older winners know Triton's own configurations alone."""
    winners = sa.table(
        "winners",
        sa.column("incumbents", sa.JSON),
        sa.column("over", sa.Text),
        sa.column("over_us", sa.Double),
    )
    none = winners.c.over == ""
    for name in OWN:
        own_us = winners.c.incumbents[name]["median_us"].as_float()
        there = winners.c.incumbents[name]["status"].as_string().is_not(None)
        op.execute(sa.update(winners).where(none, there).values(over=name, over_us=own_us))
