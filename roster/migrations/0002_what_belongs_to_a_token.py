# Cheap on a million calls: a column that may be null, and two indexes that hold only the calls with a key.

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('roster', '0001_initial'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AddField(
            model_name='agentsession',
            name='made_with',
            field=models.ForeignKey(blank=True, db_constraint=False, help_text='The token that it was made with, if with any.', null=True, on_delete=django.db.models.deletion.DO_NOTHING, related_name='made_sessions', to='roster.apitoken'),
        ),
        # First the new ones: what was unique for a user is unique for each of their tokens.
        migrations.AddConstraint(
            model_name='invocation',
            constraint=models.UniqueConstraint(condition=models.Q(('idempotency_key__isnull', False), ('token__isnull', False)), fields=('token', 'idempotency_key'), name='idempotency_key_is_unique_per_token'),
        ),
        migrations.AddConstraint(
            model_name='invocation',
            constraint=models.UniqueConstraint(condition=models.Q(('idempotency_key__isnull', False), ('token__isnull', True)), fields=('requested_by', 'idempotency_key'), name='idempotency_key_is_unique_without_token'),
        ),
        migrations.RemoveConstraint(
            model_name='invocation',
            name='idempotency_key_is_unique_per_user',
        ),
    ]
