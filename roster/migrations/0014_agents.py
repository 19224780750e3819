# Agent sessions are agents: the model, its tables, and the permissions that users and groups have.

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

ACTIONS = ('add', 'change', 'delete', 'view')


def rename_permissions(apps, schema_editor):
    """Users and groups refer to the rows of permissions, so they keep what they had."""
    permissions = apps.get_model('auth', 'Permission').objects.using(schema_editor.connection.alias)
    for action in ACTIONS:
        permissions.filter(content_type__app_label='roster', codename=f'{action}_agentsession').update(
            codename=f'{action}_agent', name=f'Can {action} agent'
        )


class Migration(migrations.Migration):

    dependencies = [
        ('roster', '0013_tokens'),
    ]

    operations = [
        migrations.RemoveConstraint('agentmessage', 'one_message_of_a_session_runs'),
        migrations.RenameModel('AgentSession', 'Agent'),
        migrations.RenameField('agentmessage', 'session', 'agent'),
        migrations.AddConstraint(
            'agentmessage',
            models.UniqueConstraint(
                condition=models.Q(('status', 'running')), fields=('agent',), name='one_message_of_an_agent_runs'
            ),
        ),
        migrations.AlterField(
            'agent',
            'created_by',
            models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name='agents',
                to=settings.AUTH_USER_MODEL,
            ),
        ),
        migrations.AlterField(
            'agent',
            'made_with',
            models.ForeignKey(
                blank=True,
                db_constraint=False,
                help_text='The token that it was made with, if with any.',
                null=True,
                on_delete=django.db.models.deletion.DO_NOTHING,
                related_name='made_agents',
                to='roster.token',
            ),
        ),
        migrations.AlterField(
            'agent',
            'members',
            models.ManyToManyField(
                help_text='Whose tools it may use.', related_name='agents', to='roster.guildmember'
            ),
        ),
        migrations.RunPython(rename_permissions, migrations.RunPython.noop),
    ]
