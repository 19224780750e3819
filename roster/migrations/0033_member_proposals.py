# Members that somebody wants to add.

import django.db.models.deletion
import django.utils.timezone
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('roster', '0032_contracts'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='MemberProposal',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(editable=False, max_length=64)),
                ('text', models.TextField(editable=False, help_text='The content of guild-member.json.')),
                ('digest', models.CharField(editable=False, help_text='The SHA-256 of the text.', max_length=64)),
                ('source', models.CharField(editable=False, help_text='What it was read from.', max_length=100)),
                ('notes', models.JSONField(default=list, editable=False, help_text='Sentences for the person who approves it.')),
                ('inputs', models.JSONField(default=list, editable=False, help_text='Secrets that somebody must still set.')),
                ('secrets', models.JSONField(default=list, editable=False, help_text='The names of the secrets that came with it.')),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now, editable=False)),
                ('approved_at', models.DateTimeField(editable=False, null=True)),
                ('allowed_at', models.DateTimeField(editable=False, help_text='When the member was allowed to use its secrets.', null=True)),
                ('nodes', models.JSONField(default=dict, editable=False, help_text='For each node that tried, why it has no folder. Empty if it has one.')),
                ('approved_by', models.ForeignKey(editable=False, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('created_by', models.ForeignKey(editable=False, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'ordering': ['name'],
                'permissions': [('approve_member', 'Can propose members, and approve what they run')],
                'default_permissions': (),
                'constraints': [models.UniqueConstraint(condition=models.Q(('approved_at', None)), fields=('name',), name='one_open_proposal_for_a_name')],
            },
        ),
    ]
