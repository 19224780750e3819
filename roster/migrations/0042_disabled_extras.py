# Prompts, resources and resource templates that somebody disabled.

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('roster', '0041_manifest_error_key'),
    ]

    operations = [
        migrations.CreateModel(
            name='DisabledExtra',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('kind', models.CharField(choices=[('prompt', 'prompt'), ('resource', 'resource'), ('resourceTemplate', 'resource template')], max_length=20)),
                ('name', models.TextField(help_text='The name of the prompt, the URI of the resource, or the URI template.')),
                ('key', models.CharField(help_text='The name, or its beginning and its hash if it is long.', max_length=255)),
                ('member', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='disabled_extras', to='roster.guildmember')),
            ],
            options={
                'default_permissions': (),
                'constraints': [models.UniqueConstraint(fields=('member', 'kind', 'key'), name='extra_is_disabled_once_in_its_member')],
            },
        ),
    ]
