# Users of single sign-on: which person at the provider they are, and when they logged in there for the last time.

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('roster', '0047_grants'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='Identity',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('issuer', models.CharField(help_text='The issuer of the provider, as in its ID tokens.', max_length=500)),
                ('subject', models.CharField(help_text='The id of the person at the provider.', max_length=255)),
                ('created_at', models.DateTimeField()),
                ('last_login_at', models.DateTimeField(help_text='The last login through the provider.')),
                ('granted_groups', models.JSONField(db_default=[], default=list, help_text='The ids of the groups, also of roles, that the last login gave.')),
                ('user', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, related_name='identity', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'verbose_name_plural': 'identities',
                'default_permissions': (),
                'constraints': [models.UniqueConstraint(fields=('issuer', 'subject'), name='one_user_per_issuer_and_subject')],
            },
        ),
    ]
