# All gateways together keep the limit of concurrent calls.

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('roster', '0025_required_migration'),
    ]

    operations = [
        migrations.CreateModel(
            name='TokenShare',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('lease_id', models.UUIDField(help_text='The lease of the runtime.')),
                ('calls', models.PositiveIntegerField(help_text='The number of concurrent calls.')),
                ('token', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='shares', to='roster.token')),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('token', 'lease_id'), name='one_share_per_token_and_lease')],
            },
        ),
    ]
