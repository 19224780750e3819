# The questions of people which version of a package is the newest.

import django.db.models.deletion
import django.utils.timezone
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('roster', '0037_package_locks'),
    ]

    operations = [
        migrations.CreateModel(
            name='VersionLookUp',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('package', models.CharField(editable=False, help_text='The name of the package.', max_length=300)),
                ('asked_at', models.DateTimeField(default=django.utils.timezone.now, editable=False)),
                ('answered_at', models.DateTimeField(editable=False, null=True)),
                ('version', models.CharField(blank=True, editable=False, max_length=100)),
                ('fault', models.TextField(blank=True, editable=False, help_text='Why there is no answer. Empty if there is one.')),
                ('member', models.OneToOneField(editable=False, on_delete=django.db.models.deletion.CASCADE, related_name='version_look_up', to='roster.guildmember')),
            ],
            options={
                'default_permissions': (),
            },
        ),
    ]
