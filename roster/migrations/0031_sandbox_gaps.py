# What of a sandbox each machine cannot enforce.

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('roster', '0030_audit_log'),
    ]

    operations = [
        migrations.AddField(
            model_name='node',
            name='sandbox_gaps',
            field=models.JSONField(editable=False, help_text='The protections of a sandbox that this machine cannot enforce, each with the reason.', null=True),
        ),
    ]
