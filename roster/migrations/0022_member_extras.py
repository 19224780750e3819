# The prompts and resources of members are rows, because the gateways of all nodes list them.

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('roster', '0021_client_sessions'),
    ]

    operations = [
        migrations.CreateModel(
            name='MemberExtras',
            fields=[
                ('member', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='extras', serialize=False, to='roster.guildmember')),
                ('prompts', models.JSONField(default=list, help_text='The prompts as the member sent them.')),
                ('resources', models.JSONField(default=list, help_text='The resources as the member sent them.')),
                ('resource_templates', models.JSONField(default=list, help_text='The resource templates as the member sent them.')),
                ('digest', models.CharField(editable=False, help_text='SHA-256 of the three lists.', max_length=64)),
            ],
        ),
    ]
