from django.db import migrations


class Migration(migrations.Migration):

    dependencies = [
        ('roster', '0007_rollups'),
    ]

    operations = [
        migrations.RenameField('guildmember', 'wanted', 'desired_state'),
    ]
