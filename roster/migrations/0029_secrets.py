# Encrypted secrets, and the members that may use them.

import django.core.validators
import django.db.models.deletion
import django.utils.timezone
import roster.json_field
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('roster', '0028_invitations'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='Secret',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(help_text='Manifests refer to it as ${secret:NAME}.', max_length=64, unique=True, validators=[django.core.validators.RegexValidator('^[A-Za-z0-9_.-]+\\Z', "Use letters, digits, '.', '-' and '_'.")])),
                ('encrypted', models.TextField(editable=False, help_text='The value, encrypted with a key of the key file.')),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now, editable=False)),
                ('changed_at', models.DateTimeField(default=django.utils.timezone.now, editable=False, help_text='When its value was last set.')),
                ('changed_by', models.ForeignKey(editable=False, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'ordering': ['name'],
            },
        ),
        migrations.CreateModel(
            name='SecretUse',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('digest', models.CharField(help_text='The digest of what the member runs or calls, when this was allowed.', max_length=64)),
                ('parts', roster.json_field.JsonField(default=dict, help_text='The digests of its parts, by their keys in the manifest.')),
                ('allowed_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('allowed_by', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('member', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='secret_uses', to='roster.guildmember')),
                ('secret', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='uses', to='roster.secret')),
            ],
            options={
                'default_permissions': (),
                'constraints': [models.UniqueConstraint(fields=('secret', 'member'), name='secret_is_allowed_once_for_a_member')],
            },
        ),
    ]
