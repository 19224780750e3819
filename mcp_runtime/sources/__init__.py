"""What people have, as drafts of members: the configuration of a client, a command line, or an address.

drafts      a draft: a manifest, its secrets, and what somebody must still set or know
documents   JSON with comments, and TOML, within bounds
names       names for members
clear       which values are certainly no secrets, so that a manifest may contain them
variables   ${NAME}, ${env:NAME}, ${input:NAME} and $NAME in the texts of clients
values      moves the secrets out of env, headers, args and addresses
servers     one entry of a client's configuration, in the words of the hall
clients     finds the entries in the configuration of a client
commands    a command line as an entry
server_json server.json of the registry as an entry, with the values that a person fills in
mcpb        opens a bundle, and reads its manifest.json
user_config the server in a bundle as an entry, with the values that a person fills in
reader      a text or a bundle becomes drafts

It is pure: it reads a text or a bundle and returns values. It does not import Django, starts nothing, and resolves and
fetches nothing. No error and no note quotes a value of the text, because each could be a secret.
"""
