# The gateways of several nodes count the calls of a token together.

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('roster', '0022_member_extras'),
    ]

    operations = [
        migrations.CreateModel(
            name='TokenBucket',
            fields=[
                ('token', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='bucket', serialize=False, to='roster.token')),
                ('full_at', models.DateTimeField(help_text="When all calls of a minute may be made again, by the database's clock.")),
            ],
        ),
    ]
