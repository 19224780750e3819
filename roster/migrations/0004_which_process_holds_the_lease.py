# A pid and a start time are those of one machine, boot and pid namespace: the row says of which.

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('roster', '0003_who_made_old_sessions'),
    ]

    operations = [
        migrations.RemoveField(
            model_name='hall',
            name='lease_pid_started_at',
        ),
        migrations.AddField(
            model_name='hall',
            name='lease_runtime',
            field=models.CharField(blank=True, default='', help_text='pid.started.namespace.boot: tells the process from every other one.', max_length=100),
            preserve_default=False,
        ),
    ]
