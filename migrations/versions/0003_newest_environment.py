"""An index that finds the newest winner of an environment"""

from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_index(
        op.f("ix_winners_environment_id_published_at"),
        "winners",
        ["environment_id", "published_at"],
    )
