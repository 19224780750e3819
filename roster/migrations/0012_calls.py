# Invocations are calls: the model, its table, its indexes, and the permissions that users and groups have.

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

ACTIONS = ('add', 'change', 'delete', 'view')


def rename_permissions(apps, schema_editor):
    """Users and groups refer to the rows of permissions, so they keep what they had."""
    permissions = apps.get_model('auth', 'Permission').objects.using(schema_editor.connection.alias)
    for action in ACTIONS:
        permissions.filter(content_type__app_label='roster', codename=f'{action}_invocation').update(
            codename=f'{action}_call', name=f'Can {action} call'
        )


class Migration(migrations.Migration):

    dependencies = [
        ('roster', '0011_token_words'),
        ('auth', '0012_alter_user_first_name_max_length'),
        ('contenttypes', '0002_remove_content_type_name'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.RenameModel('Invocation', 'Call'),
        migrations.RenameIndex('call', new_name='call_active', old_name='invocation_active'),
        migrations.RenameIndex('call', new_name='call_by_member', old_name='invocation_by_member'),
        migrations.RenameIndex('call', new_name='call_by_end', old_name='invocation_by_end'),
        migrations.RenameIndex('call', new_name='call_by_token', old_name='invocation_by_token'),
        migrations.AlterField(
            'call',
            'member',
            models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE, related_name='calls', to='roster.guildmember'
            ),
        ),
        migrations.AlterField(
            'call',
            'requested_by',
            models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name='calls',
                to=settings.AUTH_USER_MODEL,
            ),
        ),
        migrations.AlterField(
            'call',
            'token',
            models.ForeignKey(
                blank=True,
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name='calls',
                to='roster.apitoken',
            ),
        ),
        migrations.RunPython(rename_permissions, migrations.RunPython.noop),
    ]
