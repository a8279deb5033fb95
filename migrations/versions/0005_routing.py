"""Runs have the captured routings that they measured with"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    # Empty for what is stored already: random routings, which those runs are compared with.
    op.add_column("runs", sa.Column("routing", sa.Text(), nullable=False, server_default=""))
