# The place of the fault of a manifest, for the form that repairs it.

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('roster', '0040_pinned_tools'),
    ]

    operations = [
        migrations.AddField(
            model_name='guildmember',
            name='manifest_error_key',
            field=models.TextField(blank=True, db_default='', editable=False, help_text='The place of the first fault in guild-member.json, such as args.1. Empty if the fault has none.'),
        ),
    ]
