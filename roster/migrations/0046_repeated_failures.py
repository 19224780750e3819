# A status change counts the automatic restarts that failed in the same way, which have no rows of their own.

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('roster', '0045_saved_filters'),
    ]

    operations = [
        migrations.AddField(
            model_name='statuschange',
            name='repeated_at',
            field=models.DateTimeField(blank=True, help_text='When the last of these restarts failed.', null=True),
        ),
        migrations.AddField(
            model_name='statuschange',
            name='repeats',
            field=models.PositiveIntegerField(db_default=0, default=0, help_text='How many automatic restarts after it failed in the same way.'),
        ),
    ]
