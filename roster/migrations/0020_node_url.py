# Nodes send each other requests for their members.

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('roster', '0019_key_fingerprint'),
    ]

    operations = [
        migrations.AddField(
            model_name='node',
            name='url',
            field=models.CharField(blank=True, db_default='', help_text='GUILD_HALL_NODE_URL: where other nodes reach its gateway.', max_length=300),
        ),
    ]
