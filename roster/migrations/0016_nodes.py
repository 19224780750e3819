# The lease moves from the hall's row to the row of a node.

from django.db import migrations, models


def move_lease(apps, schema_editor):
    """The runtime that stopped for this upgrade may have been killed. Its lease shows which processes it left."""
    alias = schema_editor.connection.alias
    for hall in apps.get_model('roster', 'Hall').objects.using(alias).exclude(lease_id=None):
        apps.get_model('roster', 'Node').objects.using(alias).create(
            name='main',
            lease_id=hall.lease_id,
            host=hall.lease_host,
            pid=hall.lease_pid,
            identity=hall.lease_runtime,
            started_at=hall.lease_taken_at,
            heartbeat_at=hall.heartbeat_at,
        )


class Migration(migrations.Migration):

    dependencies = [
        ('roster', '0015_help_texts'),
    ]

    operations = [
        migrations.CreateModel(
            name='Node',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(help_text='GUILD_HALL_NODE of this machine.', max_length=64, unique=True)),
                ('lease_id', models.UUIDField(editable=False, null=True, unique=True)),
                ('host', models.CharField(blank=True, help_text='The hostname.', max_length=255)),
                ('pid', models.PositiveIntegerField(help_text='The process id of the worker.', null=True)),
                (
                    'identity',
                    models.CharField(
                        blank=True,
                        help_text='pid.start.namespace.boot, which no other process has.',
                        max_length=100,
                    ),
                ),
                ('started_at', models.DateTimeField(help_text='When the runtime took the lease.', null=True)),
                ('heartbeat_at', models.DateTimeField(help_text='The last heartbeat of the runtime.', null=True)),
                ('version', models.CharField(blank=True, help_text='The version of Guild Hall.', max_length=50)),
                (
                    'capacity',
                    models.PositiveIntegerField(
                        help_text='The number of calls that can run at the same time.', null=True
                    ),
                ),
                (
                    'cpu_percent',
                    models.FloatField(
                        help_text='CPU time of the runtime and its members, in percent of one core.', null=True
                    ),
                ),
                (
                    'memory_bytes',
                    models.BigIntegerField(help_text='Memory of the runtime and its members.', null=True),
                ),
            ],
            options={
                'ordering': ['name'],
            },
        ),
        migrations.RunPython(move_lease, migrations.RunPython.noop),
        migrations.RemoveField('hall', 'heartbeat_at'),
        migrations.RemoveField('hall', 'lease_host'),
        migrations.RemoveField('hall', 'lease_id'),
        migrations.RemoveField('hall', 'lease_pid'),
        migrations.RemoveField('hall', 'lease_runtime'),
        migrations.RemoveField('hall', 'lease_taken_at'),
    ]
