from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('roster', '0004_which_process_holds_the_lease'),
    ]

    operations = [
        migrations.AddField(
            model_name='guildmember',
            name='no_answer_since',
            field=models.DateTimeField(
                blank=True,
                help_text='When the first call was sent that nobody answered, nor any later one.',
                null=True,
            ),
        ),
    ]
