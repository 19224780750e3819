# The locks of members whose packages are installed once.

import django.db.models.deletion
import django.utils.timezone
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('roster', '0036_edits'),
    ]

    operations = [
        migrations.CreateModel(
            name='PackageLock',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('specification', models.TextField(editable=False, help_text='What it is for: the packages that the manifest names.')),
                ('key', models.CharField(editable=False, help_text='The SHA-256 of the specification.', max_length=64)),
                ('text', models.TextField(editable=False, help_text='A package-lock.json, or requirements with hashes.')),
                ('digest', models.CharField(editable=False, help_text='The SHA-256 of the text.', max_length=64)),
                ('version', models.CharField(editable=False, help_text='The exact version of the main package.', max_length=100)),
                ('count', models.PositiveIntegerField(editable=False, help_text='The number of packages.')),
                ('scripts', models.JSONField(default=list, editable=False, help_text='Names of packages with install scripts.')),
                ('made_at', models.DateTimeField(default=django.utils.timezone.now, editable=False)),
                ('node', models.CharField(editable=False, help_text='The name of the node that made it.', max_length=200)),
                ('used_at', models.DateTimeField(default=django.utils.timezone.now, editable=False, help_text='The day of its last use.')),
                ('member', models.ForeignKey(editable=False, on_delete=django.db.models.deletion.CASCADE, related_name='package_locks', to='roster.guildmember')),
            ],
            options={
                'ordering': ['-made_at'],
                'default_permissions': (),
                'constraints': [models.UniqueConstraint(fields=('member', 'key'), name='one_lock_for_a_specification')],
            },
        ),
    ]
