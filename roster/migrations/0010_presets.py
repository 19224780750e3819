import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('roster', '0009_remote_servers'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.RemoveConstraint('argumentset', 'set_name_is_unique_for_user_and_tool'),
        migrations.RenameModel('ArgumentSet', 'Preset'),
        migrations.AlterField(
            'preset',
            'user',
            models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE, related_name='presets', to=settings.AUTH_USER_MODEL
            ),
        ),
        migrations.AlterField(
            'preset',
            'tool',
            models.ForeignKey(
                db_index=False,
                on_delete=django.db.models.deletion.CASCADE,
                related_name='presets',
                to='roster.tool',
            ),
        ),
        migrations.AddConstraint(
            'preset',
            models.UniqueConstraint(
                fields=('tool', 'user', 'name'), name='preset_name_is_unique_for_user_and_tool'
            ),
        ),
    ]
