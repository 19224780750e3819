# Groups that are roles. The groups themselves are made after each migration, by roster.roles.

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('auth', '0012_alter_user_first_name_max_length'),
        ('roster', '0026_token_shares'),
    ]

    operations = [
        migrations.CreateModel(
            name='Role',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=64, unique=True)),
                ('group', models.OneToOneField(on_delete=django.db.models.deletion.PROTECT, related_name='role', to='auth.group')),
            ],
            options={
                'ordering': ['pk'],
                'default_permissions': (),
            },
        ),
    ]
