"""The settings of the server that a winner's gain is over"""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    op.add_column("winners", sa.Column("server", sa.JSON(), server_default="{}", nullable=False))
