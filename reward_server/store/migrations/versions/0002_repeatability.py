"""How well a version's rewards repeat, as measured when it was registered."""

from alembic import op
import sqlalchemy as sa


revision = '0002'
down_revision = '0001'
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column('versions', sa.Column('repeatability', sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column('versions', 'repeatability')
