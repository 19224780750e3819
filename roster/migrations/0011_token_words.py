from django.db import migrations


class Migration(migrations.Migration):

    dependencies = [
        ('roster', '0010_presets'),
    ]

    operations = [
        migrations.AlterModelOptions(
            name='apitoken',
            options={'ordering': ['-id'], 'verbose_name': 'token'},
        ),
    ]
