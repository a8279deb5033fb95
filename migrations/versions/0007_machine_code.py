"""Trials and winners have a hash of their machine code, and runs may revalidate an earlier one"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    # Empty for what is stored already: its machine code is not known, so no time is carried over.
    for table in ("trials", "winners"):
        op.add_column(table, sa.Column("code", sa.Text(), nullable=False, server_default=""))
    op.add_column("runs", sa.Column("revalidates", sa.Text(), nullable=False, server_default=""))
