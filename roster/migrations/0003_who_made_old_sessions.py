# Sessions of agents from before `made_with`: a token for a part of the roster sees those that it made.

from django.db import migrations
from django.db.models import Count, Max, Min


def fill(apps, schema_editor):
    """Those in which one token alone ever spoke are its own: it sees nothing that it did not ask for."""
    sessions = apps.get_model('roster', 'AgentSession').objects.using(schema_editor.connection.alias)
    spoken = sessions.filter(made_with=None).annotate(
        asked=Count('messages'), with_token=Count('messages__asked_with'),
        first=Min('messages__asked_with'), last=Max('messages__asked_with'),
    ).values_list('pk', 'asked', 'with_token', 'first', 'last')
    for pk, asked, with_token, first, last in spoken:
        if asked and asked == with_token and first == last:
            sessions.filter(pk=pk).update(made_with=first)


class Migration(migrations.Migration):

    dependencies = [
        ('roster', '0002_what_belongs_to_a_token'),
    ]

    operations = [
        migrations.RunPython(fill, migrations.RunPython.noop),
    ]
