# How clients of a token list tools: all of them, or three that search, with pinned ones beside them.


from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('roster', '0042_disabled_extras'),
    ]

    operations = [
        migrations.AddField(
            model_name='token',
            name='pinned_tools',
            field=models.JSONField(blank=True, db_default=[], default=list, help_text='MEMBER/TOOL of the tools that clients list beside these three.'),
        ),
        migrations.AddField(
            model_name='token',
            name='search_mode',
            field=models.BooleanField(db_default=False, default=False, help_text='Clients list three tools that find and call all others, in place of all tools.'),
        ),
    ]
