# Old versions know from the database that they cannot use it any more.

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('roster', '0024_agents_of_nodes'),
    ]

    operations = [
        migrations.AddField(
            model_name='hall',
            name='required_migration',
            field=models.PositiveIntegerField(db_default=0, editable=False, help_text='A version of Guild Hall whose newest migration has a lower number cannot use the database any more.'),
        ),
        migrations.AddField(
            model_name='node',
            name='newest_migration',
            field=models.PositiveIntegerField(db_default=0, editable=False, help_text='The number of the newest migration that this version has.'),
        ),
    ]
