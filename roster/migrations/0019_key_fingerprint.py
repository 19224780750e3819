# The hall knows a fingerprint of its secret key, which is the same on all nodes.

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('roster', '0018_several_nodes'),
    ]

    operations = [
        migrations.AddField(
            model_name='hall',
            name='key_fingerprint',
            field=models.CharField(blank=True, db_default='', editable=False, help_text='A fingerprint of the secret key, which is the same on all nodes. Empty until a runtime has started.', max_length=64),
        ),
    ]
