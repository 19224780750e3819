# Edits of manifests that people propose in the hall.

import django.db.models.deletion
import django.utils.timezone
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('roster', '0035_trash'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='ManifestEdit',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('changes', models.JSONField(default=list, editable=False, help_text='For each value its path, and what it is before and after the edit.')),
                ('fault', models.TextField(blank=True, editable=False, help_text='The fault of the file. The hall did not know its values, so they are replaced, whatever they are.')),
                ('notes', models.JSONField(default=list, editable=False, help_text='Sentences for the person who approves it.')),
                ('secrets', models.JSONField(default=list, editable=False, help_text='The names of the secrets that came with it.')),
                ('needs_restart', models.BooleanField(default=False, editable=False, help_text='The member needs a new process.')),
                ('identity_before', models.CharField(editable=False, help_text='What the member ran or called.', max_length=64)),
                ('identity_after', models.CharField(blank=True, editable=False, help_text='Empty if the hall does not know its other values.', max_length=64)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now, editable=False)),
                ('approved_at', models.DateTimeField(editable=False, null=True)),
                ('keeps_secrets', models.BooleanField(default=False, editable=False, help_text='The member may use the secrets afterwards that it could use before.')),
                ('allowed_at', models.DateTimeField(editable=False, help_text='When the edited member was allowed to use its secrets again.', null=True)),
                ('nodes', models.JSONField(default=dict, editable=False, help_text='For each node that had the file at the approval, why it is not changed. Empty if it is.')),
                ('approved_by', models.ForeignKey(editable=False, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('created_by', models.ForeignKey(editable=False, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('member', models.ForeignKey(editable=False, on_delete=django.db.models.deletion.CASCADE, related_name='edits', to='roster.guildmember')),
                ('undoes', models.ForeignKey(editable=False, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='undone_by', to='roster.manifestedit')),
            ],
            options={
                'ordering': ['-pk'],
                'default_permissions': (),
            },
        ),
    ]
