# Members whose folders are in the trash.

import django.db.models.deletion
import django.utils.timezone
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('roster', '0034_tool_sets'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='TrashedMember',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(editable=False, max_length=64)),
                ('directory', models.CharField(editable=False, help_text='The path relative to the members folder.', max_length=1000)),
                ('removed_at', models.DateTimeField(default=django.utils.timezone.now, editable=False)),
                ('is_replaced', models.BooleanField(default=False, editable=False, help_text='A member of this name came back. No node moves its folder to the trash any more.')),
                ('restore_requested_at', models.DateTimeField(editable=False, null=True)),
                ('nodes', models.JSONField(default=dict, editable=False, help_text='For each node that tried, why its folder is not where it should be. Empty if it is.')),
                ('moved_at', models.JSONField(default=dict, editable=False, help_text='For each node that moved its folder to the trash, when, in Unix time.')),
                ('removed_by', models.ForeignKey(editable=False, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'ordering': ['-pk'],
                'default_permissions': (),
            },
        ),
    ]
