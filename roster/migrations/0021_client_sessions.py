# Rows with the state of sessions replace a file in the data folder, because all nodes need it.

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('roster', '0020_node_url'),
    ]

    operations = [
        migrations.CreateModel(
            name='ClientSession',
            fields=[
                ('digest', models.CharField(help_text="SHA-256 of the session's id.", max_length=64, primary_key=True, serialize=False)),
                ('ended_at', models.DateTimeField(help_text='When the client ended the session. Its id is invalid since.', null=True)),
                ('log_level', models.CharField(blank=True, help_text='The log level that the client has set.', max_length=20)),
                ('subscriptions', models.JSONField(db_default={}, help_text='The URIs of subscribed resources, by member name.')),
                ('changed_at', models.DateTimeField(db_index=True, help_text="When the row was written, by the database's clock.")),
            ],
        ),
    ]
