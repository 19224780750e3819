# Tool sets, tokens for a tool set, and the tool set of a call.

import django.core.validators
import django.db.models.deletion
import django.utils.timezone
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('auth', '0012_alter_user_first_name_max_length'),
        ('roster', '0033_member_proposals'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AddField(
            model_name='call',
            name='tool_set',
            field=models.CharField(blank=True, help_text='The name of the tool set at whose address it was called.', max_length=64, null=True),
        ),
        migrations.CreateModel(
            name='ToolSet',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(help_text='A part of its address: /sets/NAME/mcp.', max_length=64, unique=True, validators=[django.core.validators.RegexValidator('^[a-z0-9][a-z0-9_-]*\\Z', "Use lower case letters, digits, '-' and '_'. Begin without '_'.")])),
                ('title', models.CharField(blank=True, help_text='Clients may show it instead of the name.', max_length=100)),
                ('description', models.CharField(blank=True, help_text='Clients get it as instructions for their model.', max_length=2000)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now, editable=False)),
                ('changed_at', models.DateTimeField(default=django.utils.timezone.now, editable=False)),
                ('created_by', models.ForeignKey(editable=False, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'ordering': ['name'],
            },
        ),
        migrations.AddField(
            model_name='token',
            name='tool_set',
            field=models.ForeignKey(blank=True, help_text='The token is for what is in this tool set, also after changes of the set.', null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='tokens', to='roster.toolset'),
        ),
        migrations.CreateModel(
            name='ToolSetGroup',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('group', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, to='auth.group')),
                ('tool_set', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to='roster.toolset')),
            ],
            options={
                'default_permissions': (),
                'constraints': [models.UniqueConstraint(fields=('tool_set', 'group'), name='group_is_unique_in_its_tool_set')],
            },
        ),
        migrations.AddField(
            model_name='toolset',
            name='groups',
            field=models.ManyToManyField(blank=True, help_text='If a tool set has groups, only their users and superusers can use it.', related_name='tool_sets', through='roster.ToolSetGroup', to='auth.group'),
        ),
        migrations.CreateModel(
            name='ToolSetEntry',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('tool_name', models.CharField(blank=True, help_text='If empty, all of the member.', max_length=255)),
                ('new_name', models.CharField(blank=True, help_text='If empty, the name that the tool has at /mcp.', max_length=64)),
                ('new_description', models.CharField(blank=True, help_text='If empty, the description that the member gives.', max_length=4000)),
                ('position', models.PositiveIntegerField(default=0)),
                ('member', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='tool_set_entries', to='roster.guildmember')),
                ('tool_set', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='entries', to='roster.toolset')),
            ],
            options={
                'ordering': ['position', 'id'],
                'default_permissions': (),
                'constraints': [models.UniqueConstraint(fields=('tool_set', 'member', 'tool_name'), name='entry_is_unique_in_its_tool_set')],
            },
        ),
    ]
