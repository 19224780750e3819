from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('roster', '0008_desired_state'),
    ]

    operations = [
        migrations.AlterField(
            'guildmember',
            'server_url',
            models.CharField(blank=True, help_text='Of a remote server.', max_length=2048),
        ),
    ]
