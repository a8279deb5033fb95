"""An urgent job gets the GPUs of its host's idle workers

An older program that is still running claims no jobs on this schema, so it uses no lent GPU.
"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    op.create_table(
        "gpu_loans",
        sa.Column("gpu", sa.Text(), nullable=False),
        sa.Column("borrower", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("gpu", name="pk_gpu_loans"),
    )
    op.create_index("ix_gpu_loans_borrower", "gpu_loans", ["borrower"])
