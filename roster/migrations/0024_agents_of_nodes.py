# Each node says itself whether it can run agents.

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('roster', '0023_token_buckets'),
    ]

    operations = [
        migrations.RemoveField(
            model_name='hall',
            name='agent_problem',
        ),
        migrations.AddField(
            model_name='node',
            name='agent_problem',
            field=models.TextField(blank=True, db_default='', editable=False, help_text='Why no agent can run on the node. Empty if agents can.'),
        ),
    ]
