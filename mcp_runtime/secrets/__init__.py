"""Secrets of members: references in manifests, values in rows, and the file with the keys that encrypt them.

references   ${secret:NAME}, ${env:NAME} and ${file:PATH}: reading them, and masking their values. No Django
key_file     the keys that encrypt secrets, in a file outside of the database. No Django
values       the rows: encrypt a value, and decrypt it for a member that may use it

Rooms above may import it. It imports protocol, rows and the models.
"""
