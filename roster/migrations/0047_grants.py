# Clients that sign in get grants: tokens without a text of their own, with access tokens in its place.

import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('roster', '0046_repeated_failures'),
    ]

    operations = [
        migrations.CreateModel(
            name='ClientRegistration',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('address', models.CharField(help_text="Of the connection. Behind a proxy it is the proxy's.", max_length=100)),
                ('at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), db_index=True)),
            ],
            options={
                'default_permissions': (),
            },
        ),
        migrations.CreateModel(
            name='Grant',
            fields=[
                ('token', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='grant', serialize=False, to='roster.token')),
                ('client_id', models.CharField(db_index=True, help_text='As in the rows of the OAuth library.', max_length=255)),
                ('redirect_uri', models.CharField(help_text='Where the browser was sent after the consent.', max_length=500)),
                ('code_digest', models.CharField(help_text='The SHA-256 of the authorization code.', max_length=64, null=True, unique=True)),
                ('redeemed_at', models.DateTimeField(help_text='When the client got its first access token for the code.', null=True)),
                ('family', models.UUIDField(help_text='The family of the refresh tokens, as in the rows of the OAuth library.', null=True, unique=True)),
                ('ends_at', models.DateTimeField(help_text='The end that the person chose. Until it is redeemed, the token ends soon.')),
            ],
            options={
                'default_permissions': (),
            },
        ),
        migrations.AddField(
            model_name='token',
            name='resource',
            field=models.CharField(blank=True, db_default='', editable=False, help_text='Of a grant: the path of the gateway that it is for. Empty for a token.', max_length=210),
        ),
        migrations.CreateModel(
            name='AccessToken',
            fields=[
                ('digest', models.CharField(max_length=64, primary_key=True, serialize=False)),
                ('expires_at', models.DateTimeField()),
                ('grant', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='access_tokens', to='roster.grant')),
            ],
            options={
                'default_permissions': (),
            },
        ),
    ]
