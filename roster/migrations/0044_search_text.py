# The searchable text of calls. PostgreSQL has an index of it, and SQLite a table of FTS5 (mcp_runtime.calls.text_index).

from django.db import migrations, models

INDEX = (
    "CREATE INDEX roster_call_text ON roster_call USING gin (to_tsvector('simple', search_text)) "
    "WHERE search_text IS NOT NULL"
)


def make_index(apps, editor):
    if editor.connection.vendor == "postgresql":
        editor.execute(INDEX)


def drop_index(apps, editor):
    if editor.connection.vendor == "postgresql":
        editor.execute("DROP INDEX IF EXISTS roster_call_text")
        return
    for name in ("insert", "delete", "update", "update_old"):
        editor.execute(f"DROP TRIGGER IF EXISTS roster_call_text_{name}")
    editor.execute("DROP TABLE IF EXISTS roster_call_text")


class Migration(migrations.Migration):

    dependencies = [
        ('roster', '0043_token_search_mode'),
    ]

    operations = [
        migrations.AddField(
            model_name='call',
            name='search_text',
            field=models.TextField(blank=True, editable=False, help_text='The words of the masked arguments, the result and the error. The end of the call writes it, and the database has an index of it (mcp_runtime.calls.text_index).', null=True),
        ),
        migrations.RunPython(make_index, drop_index),
    ]
