"""The first schema."""

from alembic import op
import sqlalchemy as sa


revision = '0001'
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table('api_keys',
    sa.Column('id', sa.String(length=16), nullable=False),
    sa.Column('name', sa.Text(), nullable=False),
    sa.Column('secret_hash', sa.LargeBinary(length=32), nullable=False),
    sa.Column('scopes', sa.Text(), nullable=False),
    sa.Column('created_ms', sa.BigInteger(), nullable=False),
    sa.Column('expires_ms', sa.BigInteger(), nullable=True),
    sa.Column('revoked_ms', sa.BigInteger(), nullable=True),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_api_keys'))
    )
    op.create_table('environments',
    sa.Column('id', sa.Integer(), nullable=False),
    sa.Column('hash', sa.String(length=80), nullable=False),
    sa.Column('observed', sa.LargeBinary(), nullable=False),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_environments')),
    sa.UniqueConstraint('hash', name=op.f('uq_environments_hash'))
    )
    op.create_table('events',
    sa.Column('id', sa.Integer(), nullable=False),
    sa.Column('at_ms', sa.BigInteger(), nullable=False),
    sa.Column('kind', sa.String(length=32), nullable=False),
    sa.Column('detail', sa.LargeBinary(), nullable=False),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_events'))
    )
    op.create_table('idempotency',
    sa.Column('key', sa.String(length=256), nullable=False),
    sa.Column('body_hash', sa.LargeBinary(length=32), nullable=False),
    sa.Column('score_ids', sa.LargeBinary(), nullable=False),
    sa.Column('created_ms', sa.BigInteger(), nullable=False),
    sa.PrimaryKeyConstraint('key', name=op.f('pk_idempotency'))
    )
    op.create_index('ix_idempotency_created', 'idempotency', ['created_ms'], unique=False)
    op.create_table('runs',
    sa.Column('id', sa.Integer(), nullable=False),
    sa.Column('name', sa.String(length=256), nullable=False),
    sa.Column('config', sa.LargeBinary(), nullable=False),
    sa.Column('train_grader', sa.String(length=160), nullable=True),
    sa.Column('heldout_grader', sa.String(length=160), nullable=True),
    sa.Column('declared', sa.SmallInteger(), nullable=False),
    sa.Column('created_ms', sa.BigInteger(), nullable=False),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_runs')),
    sa.UniqueConstraint('name', name=op.f('uq_runs_name'))
    )
    op.create_table('score_items',
    sa.Column('score_id', sa.BigInteger().with_variant(sa.Integer(), 'sqlite'), autoincrement=False, nullable=False),
    sa.Column('payload', sa.LargeBinary(), nullable=False),
    sa.PrimaryKeyConstraint('score_id', name=op.f('pk_score_items'))
    )
    op.create_table('specs',
    sa.Column('id', sa.Integer(), nullable=False),
    sa.Column('digest', sa.String(length=80), nullable=False),
    sa.Column('kind', sa.String(length=64), nullable=False),
    sa.Column('config', sa.LargeBinary(), nullable=False),
    sa.Column('ingredients', sa.LargeBinary(), nullable=False),
    sa.Column('parts', sa.LargeBinary(), nullable=False),
    sa.Column('release', sa.String(length=128), nullable=False),
    sa.Column('created_ms', sa.BigInteger(), nullable=False),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_specs')),
    sa.UniqueConstraint('digest', name=op.f('uq_specs_digest'))
    )
    op.create_table('gradings',
    sa.Column('id', sa.BigInteger().with_variant(sa.Integer(), 'sqlite'), autoincrement=False, nullable=False),
    sa.Column('spec_id', sa.Integer(), nullable=False),
    sa.Column('environment_id', sa.Integer(), nullable=False),
    sa.Column('view_hash', sa.LargeBinary(length=32), nullable=False),
    sa.Column('reusable', sa.SmallInteger(), nullable=False),
    sa.Column('reward', sa.Float(precision=53), nullable=True),
    sa.Column('basis', sa.String(length=16), nullable=True),
    sa.Column('failure', sa.String(length=32), nullable=True),
    sa.Column('detail', sa.LargeBinary(), nullable=True),
    sa.Column('result', sa.LargeBinary(), nullable=False),
    sa.Column('elapsed_ms', sa.Float(precision=53), nullable=False),
    sa.Column('attempts', sa.Integer(), nullable=False),
    sa.Column('created_ms', sa.BigInteger(), nullable=False),
    sa.CheckConstraint('(reward IS NULL) = (failure IS NOT NULL)', name=op.f('ck_gradings_scored_or_failed')),
    sa.ForeignKeyConstraint(['environment_id'], ['environments.id'], name=op.f('fk_gradings_environment_id')),
    sa.ForeignKeyConstraint(['spec_id'], ['specs.id'], name=op.f('fk_gradings_spec_id')),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_gradings'))
    )
    op.create_index('ix_gradings_reuse', 'gradings', ['view_hash', 'spec_id'], unique=False, sqlite_where=sa.text('reusable = 1'), postgresql_where=sa.text('reusable = 1'))
    op.create_table('servers',
    sa.Column('id', sa.Integer(), nullable=False),
    sa.Column('started_ms', sa.BigInteger(), nullable=False),
    sa.Column('host', sa.Text(), nullable=False),
    sa.Column('release', sa.String(length=128), nullable=False),
    sa.Column('environment_id', sa.Integer(), nullable=False),
    sa.ForeignKeyConstraint(['environment_id'], ['environments.id'], name=op.f('fk_servers_environment_id')),
    sa.Column('node', sa.SmallInteger(), nullable=False),
    sa.Column('seen_ms', sa.BigInteger(), nullable=False),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_servers'))
    )
    op.create_table('versions',
    sa.Column('id', sa.Integer(), nullable=False),
    sa.Column('name', sa.String(length=64), nullable=False),
    sa.Column('version', sa.Integer(), nullable=False),
    sa.Column('spec_id', sa.Integer(), nullable=False),
    sa.Column('description', sa.Text(), nullable=True),
    sa.Column('cases', sa.LargeBinary(), nullable=False),
    sa.Column('note', sa.Text(), nullable=True),
    sa.Column('origin', sa.String(length=16), nullable=False),
    sa.Column('created_ms', sa.BigInteger(), nullable=False),
    sa.ForeignKeyConstraint(['spec_id'], ['specs.id'], name=op.f('fk_versions_spec_id')),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_versions')),
    sa.UniqueConstraint('name', 'spec_id', name=op.f('uq_versions_name_spec_id')),
    sa.UniqueConstraint('name', 'version', name=op.f('uq_versions_name_version'))
    )
    op.create_table('graders',
    sa.Column('name', sa.String(length=64), nullable=False),
    sa.Column('active_version_id', sa.Integer(), nullable=True),
    sa.ForeignKeyConstraint(['active_version_id'], ['versions.id'], name=op.f('fk_graders_active_version_id')),
    sa.PrimaryKeyConstraint('name', name=op.f('pk_graders'))
    )
    op.create_table('run_pins',
    sa.Column('run_id', sa.Integer(), nullable=False),
    sa.Column('name', sa.String(length=64), nullable=False),
    sa.Column('version_id', sa.Integer(), nullable=False),
    sa.ForeignKeyConstraint(['run_id'], ['runs.id'], name=op.f('fk_run_pins_run_id')),
    sa.ForeignKeyConstraint(['version_id'], ['versions.id'], name=op.f('fk_run_pins_version_id')),
    sa.PrimaryKeyConstraint('run_id', 'name', name=op.f('pk_run_pins'))
    )
    op.create_table('scores',
    sa.Column('id', sa.BigInteger().with_variant(sa.Integer(), 'sqlite'), autoincrement=False, nullable=False),
    sa.Column('grading_id', sa.BigInteger().with_variant(sa.Integer(), 'sqlite'), nullable=False),
    sa.Column('version_id', sa.Integer(), nullable=False),
    sa.Column('run_id', sa.Integer(), nullable=True),
    sa.Column('step', sa.BigInteger(), nullable=True),
    sa.Column('item_id', sa.String(length=256), nullable=True),
    sa.Column('group_name', sa.String(length=256), nullable=True),
    sa.Column('group_size', sa.Integer(), nullable=True),
    sa.Column('policy_version', sa.BigInteger(), nullable=True),
    sa.Column('finish_reason', sa.String(length=16), nullable=True),
    sa.Column('tokens', sa.BigInteger(), nullable=True),
    sa.Column('cached', sa.SmallInteger(), nullable=False),
    sa.Column('created_ms', sa.BigInteger(), nullable=False),
    sa.ForeignKeyConstraint(['grading_id'], ['gradings.id'], name=op.f('fk_scores_grading_id')),
    sa.ForeignKeyConstraint(['run_id'], ['runs.id'], name=op.f('fk_scores_run_id')),
    sa.ForeignKeyConstraint(['version_id'], ['versions.id'], name=op.f('fk_scores_version_id')),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_scores'))
    )
    op.create_index('ix_scores_grading', 'scores', ['grading_id'], unique=False)
    op.create_index('ix_scores_run', 'scores', ['run_id', 'id'], unique=False)
    op.create_index('ix_scores_version', 'scores', ['version_id', 'id'], unique=False)


def downgrade() -> None:
    op.drop_index('ix_scores_version', table_name='scores')
    op.drop_index('ix_scores_run', table_name='scores')
    op.drop_index('ix_scores_grading', table_name='scores')
    op.drop_table('scores')
    op.drop_table('run_pins')
    op.drop_table('graders')
    op.drop_table('versions')
    op.drop_table('servers')
    op.drop_index('ix_gradings_reuse', table_name='gradings', sqlite_where=sa.text('reusable = 1'), postgresql_where=sa.text('reusable = 1'))
    op.drop_table('gradings')
    op.drop_table('specs')
    op.drop_table('score_items')
    op.drop_table('runs')
    op.drop_index('ix_idempotency_created', table_name='idempotency')
    op.drop_table('idempotency')
    op.drop_table('events')
    op.drop_table('environments')
    op.drop_table('api_keys')
