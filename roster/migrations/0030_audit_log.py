# The audit log, and the triggers that keep its entries.
#
# They refuse every change, and the deletion of entries that are younger than 30 days (AuditEntry.MIN_DAYS). A migration
# that makes SQLite build the table again must create them again. tests/rows/roster/models/test_audit.py notices it.

import django.db.models.functions.datetime
from django.db import migrations, models

CHANGED = "Entries of the audit log are only added. Nobody changes or deletes them."
KEPT = "Entries of the audit log are kept for 30 days at least. Only older ones can be deleted."
SQLITE = (
    f"""CREATE TRIGGER roster_auditentry_no_update BEFORE UPDATE ON roster_auditentry
BEGIN SELECT RAISE(ABORT, '{CHANGED}'); END""",
    f"""CREATE TRIGGER roster_auditentry_no_delete BEFORE DELETE ON roster_auditentry
WHEN OLD.at >= strftime('%Y-%m-%d %H:%M:%f', 'now', '-30 days')
BEGIN SELECT RAISE(ABORT, '{KEPT}'); END""",
    # INSERT OR REPLACE would delete a row without the trigger above.
    f"""CREATE TRIGGER roster_auditentry_no_replace BEFORE INSERT ON roster_auditentry
WHEN EXISTS (SELECT 1 FROM roster_auditentry WHERE id = NEW.id)
BEGIN SELECT RAISE(ABORT, '{CHANGED}'); END""",
)
POSTGRESQL = (
    f"""CREATE FUNCTION roster_keep_auditentry() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        IF OLD.at < clock_timestamp() - interval '30 days' THEN
            RETURN OLD;
        END IF;
        RAISE EXCEPTION USING ERRCODE = 'restrict_violation', MESSAGE = '{KEPT}';
    END IF;
    RAISE EXCEPTION USING ERRCODE = 'restrict_violation', MESSAGE = '{CHANGED}';
END $$""",
    """CREATE TRIGGER roster_auditentry_keep BEFORE UPDATE OR DELETE ON roster_auditentry
FOR EACH ROW EXECUTE FUNCTION roster_keep_auditentry()""",
    """CREATE TRIGGER roster_auditentry_keep_all BEFORE TRUNCATE ON roster_auditentry
FOR EACH STATEMENT EXECUTE FUNCTION roster_keep_auditentry()""",
)


def create_triggers(apps, schema_editor):
    for statement in SQLITE if schema_editor.connection.vendor == "sqlite" else POSTGRESQL:
        schema_editor.execute(statement, params=None)


def drop_function(apps, schema_editor):
    """With its triggers. Those of SQLite go with the table."""
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute("DROP FUNCTION roster_keep_auditentry() CASCADE", params=None)


class Migration(migrations.Migration):

    dependencies = [
        ('roster', '0029_secrets'),
    ]

    operations = [
        migrations.CreateModel(
            name='AuditEntry',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False, verbose_name='time')),
                ('kind', models.CharField(editable=False, max_length=30)),
                ('source', models.CharField(editable=False, max_length=10)),
                ('actor', models.CharField(editable=False, help_text='Who did it, by name.', max_length=400)),
                ('actor_user', models.BigIntegerField(editable=False, help_text='The id of the user, who may be deleted.', null=True)),
                ('actor_token', models.BigIntegerField(editable=False, help_text='The id of the token of the request.', null=True)),
                ('address', models.CharField(blank=True, editable=False, help_text='For logins, that of the client.', max_length=100)),
                ('target', models.CharField(editable=False, help_text='What it is about, such as user bob.', max_length=400)),
                ('member', models.CharField(blank=True, editable=False, help_text='The member that it is about.', max_length=64)),
                ('before', models.JSONField(editable=False, null=True)),
                ('after', models.JSONField(editable=False, null=True)),
            ],
            options={
                'verbose_name_plural': 'audit entries',
                'ordering': ['-id'],
                'default_permissions': ('view',),
                'base_manager_name': 'objects',
                'indexes': [models.Index(fields=['kind', 'at'], name='roster_audi_kind_abcc3f_idx'), models.Index(fields=['at'], name='roster_audi_at_f29411_idx')],
            },
        ),
        migrations.CreateModel(
            name='AuditOverflow',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('kind', models.CharField(max_length=30)),
                ('hour', models.DateTimeField(help_text='The beginning of the hour.')),
                ('count', models.PositiveBigIntegerField(default=0)),
            ],
            options={
                'default_permissions': (),
                'constraints': [models.UniqueConstraint(fields=('kind', 'hour'), name='one_overflow_per_kind_and_hour')],
            },
        ),
        migrations.RunPython(create_triggers, drop_function),
    ]
