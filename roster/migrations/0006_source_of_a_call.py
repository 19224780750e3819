from django.db import migrations


class Migration(migrations.Migration):

    dependencies = [
        ('roster', '0005_no_answer_since'),
    ]

    operations = [
        migrations.RenameField('invocation', 'door', 'source'),
        migrations.RenameField('agentmessage', 'door', 'source'),
    ]
