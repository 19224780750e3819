from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('roster', '0006_source_of_a_call'),
    ]

    operations = [
        migrations.RemoveConstraint('callsum', 'one_sum_per_time_and_tool'),
        migrations.RenameModel('CallSum', 'CallRollup'),
        migrations.AddConstraint(
            'callrollup',
            models.UniqueConstraint(
                fields=('seconds', 'begins', 'tool_name', 'member'), name='one_rollup_per_time_and_tool'
            ),
        ),
        migrations.RenameField('hall', 'summed_until', 'rolled_up_until'),
        migrations.AlterField(
            'hall',
            'rolled_up_until',
            models.DateTimeField(
                help_text='Calls that ended before are in the rollups (CallRollup).', null=True
            ),
        ),
    ]
