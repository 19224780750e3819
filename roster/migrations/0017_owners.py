# Each member has an owner: a node, and the lease of the runtime there.

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('roster', '0016_nodes'),
    ]

    operations = [
        migrations.AddField(
            'node', 'beat', models.BigIntegerField(db_default=0, editable=False, help_text='The number of heartbeats so far.')
        ),
        migrations.AddField(
            'guildmember',
            'node',
            models.ForeignKey(
                blank=True,
                editable=False,
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name='members',
                to='roster.node',
            ),
        ),
        migrations.AddField(
            'guildmember',
            'lease_id',
            models.UUIDField(
                blank=True,
                editable=False,
                help_text='The lease of the runtime that owns it, or owned it last.',
                null=True,
            ),
        ),
        migrations.AlterField('portallocation', 'port', models.PositiveIntegerField()),
        migrations.AddField(
            'portallocation',
            'lease_id',
            models.UUIDField(editable=False, help_text='The lease of the runtime that uses the port.', null=True),
        ),
        migrations.AddConstraint(
            'portallocation',
            models.UniqueConstraint(fields=['lease_id', 'port'], name='port_is_unique_in_its_runtime'),
        ),
    ]
