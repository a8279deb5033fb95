"""The versions of the backends beside which Triton was measured"""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    backends = sa.Column("backends", sa.Text(), server_default="", nullable=False)
    op.add_column("environments", backends)
