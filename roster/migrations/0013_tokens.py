# API tokens are tokens: the model, its tables, and the permissions that users and groups have.

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

ACTIONS = ('add', 'change', 'delete', 'view')


def rename_permissions(apps, schema_editor):
    """Users and groups refer to the rows of permissions, so they keep what they had."""
    permissions = apps.get_model('auth', 'Permission').objects.using(schema_editor.connection.alias)
    for action in ACTIONS:
        permissions.filter(content_type__app_label='roster', codename=f'{action}_apitoken').update(
            codename=f'{action}_token', name=f'Can {action} token'
        )


class Migration(migrations.Migration):

    dependencies = [
        ('roster', '0012_calls'),
    ]

    operations = [
        migrations.RenameModel('ApiToken', 'Token'),
        migrations.AlterModelOptions('token', {'ordering': ['-id']}),
        migrations.AlterField(
            'token', 'members', models.ManyToManyField(blank=True, related_name='tokens', to='roster.guildmember')
        ),
        migrations.AlterField(
            'token', 'tools', models.ManyToManyField(blank=True, related_name='tokens', to='roster.tool')
        ),
        migrations.AlterField(
            'token',
            'user',
            models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE, related_name='tokens', to=settings.AUTH_USER_MODEL
            ),
        ),
        migrations.RunPython(rename_permissions, migrations.RunPython.noop),
    ]
