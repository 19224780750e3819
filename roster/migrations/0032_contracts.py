# The versions of what members list, which of them people agreed to, and which one a call ran.

import django.db.models.deletion
import django.utils.timezone
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('roster', '0031_sandbox_gaps'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AddField(
            model_name='call',
            name='tool_version',
            field=models.CharField(blank=True, db_default='', default='', help_text='The version of the tool when the call was made. Empty if the hall did not know the tool.', max_length=64),
        ),
        migrations.AddField(
            model_name='tool',
            name='is_held',
            field=models.BooleanField(db_default=False, default=False, help_text='The definition waits for an approval. A held tool is in no list, and nobody can call it.'),
        ),
        migrations.AddField(
            model_name='tool',
            name='version',
            field=models.CharField(blank=True, db_default='', default='', help_text='The SHA-256 of the definition.', max_length=64),
        ),
        migrations.CreateModel(
            name='Contract',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('kind', models.CharField(choices=[('tool', 'Tool'), ('prompt', 'Prompt'), ('resourceTemplate', 'Resource template'), ('instructions', 'Instructions')], max_length=20)),
                ('name', models.CharField(blank=True, max_length=255)),
                ('version', models.CharField(blank=True, help_text='The version in the last list. Empty if it left.', max_length=64)),
                ('approved_version', models.CharField(blank=True, help_text='The version that counts as agreed.', max_length=64)),
                ('is_held', models.BooleanField(default=False, help_text='The version waits for an approval.')),
                ('grade', models.CharField(blank=True, help_text='The worst of the last changes.', max_length=20)),
                ('reason', models.CharField(blank=True, help_text='Why it is held, without texts of the member.', max_length=200)),
                ('changed_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('approver', models.CharField(blank=True, help_text='The name of who approved the version.', max_length=400)),
                ('approved_at', models.DateTimeField(blank=True, null=True)),
                ('approved_by', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('member', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='contracts', to='roster.guildmember')),
            ],
            options={
                'ordering': ['member', 'kind', 'name'],
                'constraints': [models.UniqueConstraint(fields=('member', 'kind', 'name'), name='contract_is_unique_in_its_member')],
                'permissions': [('approve_contract', 'Can approve changes of tools')],
                'default_permissions': (),
            },
        ),
        migrations.CreateModel(
            name='ContractVersion',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('version', models.CharField(max_length=64)),
                ('definition', models.TextField(help_text='The definition as canonical JSON (RFC 8785).')),
                ('grade', models.CharField(blank=True, help_text='The worst change since the version that was agreed then.', max_length=20)),
                ('findings', models.JSONField(default=list, help_text='Signs of poisoning: kind, place, sentence, weight, is_hard.')),
                ('score', models.PositiveSmallIntegerField(default=0, help_text='0 to 100. From 50 on it counts as poisoned.')),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('contract', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='versions', to='roster.contract')),
            ],
            options={
                'ordering': ['-id'],
                'constraints': [models.UniqueConstraint(fields=('contract', 'version'), name='version_is_unique_in_its_contract')],
                'default_permissions': (),
            },
        ),
    ]
