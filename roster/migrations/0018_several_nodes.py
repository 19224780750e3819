# Several nodes: what each can run, and which of them owns which member.

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('roster', '0017_owners'),
    ]

    operations = [
        migrations.AddField(
            model_name='agent',
            name='node',
            field=models.ForeignKey(blank=True, editable=False, help_text='The node with the files of the conversation. Empty until the first message runs.', null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='agents', to='roster.node'),
        ),
        migrations.AddField(
            model_name='guildmember',
            name='digest',
            field=models.CharField(blank=True, db_default='', editable=False, help_text='The digest of the folder on the node that owns it.', max_length=64),
        ),
        migrations.AddField(
            model_name='guildmember',
            name='epoch',
            field=models.BigIntegerField(db_default=0, editable=False, help_text='Changes with every change of the owner, and with every start.'),
        ),
        migrations.AddField(
            model_name='guildmember',
            name='requested_node',
            field=models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='requested_members', to='roster.node'),
        ),
        migrations.AddField(
            model_name='node',
            name='fence_is_on',
            field=models.BooleanField(db_default=False, editable=False, help_text='Whether the guard ends the members of the node when it cannot renew its lease.'),
        ),
        migrations.AddField(
            model_name='node',
            name='folders',
            field=models.JSONField(db_default={}, help_text="The digest of each member's folder on this node, by member name."),
        ),
        migrations.AddField(
            model_name='node',
            name='is_draining',
            field=models.BooleanField(db_default=False, help_text='The node gives its members away and gets no others.'),
        ),
        migrations.AddField(
            model_name='node',
            name='labels',
            field=models.JSONField(db_default=[], help_text='GUILD_HALL_NODE_LABELS: a member runs here only if all of its labels are among them.'),
        ),
    ]
