# Bundles of proposed members, and their bytes in parts.

import django.db.models.deletion
import django.utils.timezone
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('roster', '0038_version_look_ups'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='Bundle',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('digest', models.CharField(editable=False, help_text='The SHA-256 of its bytes.', max_length=64)),
                ('size', models.BigIntegerField(editable=False, help_text='Of the zip, in bytes.')),
                ('unpacked_size', models.BigIntegerField(editable=False, help_text='Of all its files together, in bytes.')),
                ('file_count', models.IntegerField(editable=False)),
                ('files', models.JSONField(default=list, editable=False, help_text='The names of its first files.')),
                ('author', models.CharField(editable=False, help_text='As the bundle claims.', max_length=200)),
                ('homepage', models.CharField(editable=False, help_text='As the bundle claims.', max_length=500)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now, editable=False)),
                ('created_by', models.ForeignKey(editable=False, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('proposal', models.OneToOneField(editable=False, null=True, on_delete=django.db.models.deletion.CASCADE, to='roster.memberproposal')),
            ],
            options={
                'ordering': ['pk'],
                'default_permissions': (),
            },
        ),
        migrations.CreateModel(
            name='BundlePart',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('number', models.IntegerField(editable=False, help_text='Counted from 0.')),
                ('content', models.BinaryField()),
                ('bundle', models.ForeignKey(editable=False, on_delete=django.db.models.deletion.CASCADE, related_name='parts', to='roster.bundle')),
            ],
            options={
                'ordering': ['number'],
                'default_permissions': (),
                'constraints': [models.UniqueConstraint(fields=('bundle', 'number'), name='one_part_of_a_bundle_for_a_number')],
            },
        ),
    ]
