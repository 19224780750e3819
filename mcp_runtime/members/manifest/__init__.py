"""guild-member.json: what it may hold, and what the files in the members folder come to.

declaration   each key once: its type, its bounds, its meaning; a manifest as a value
parser        JSON values against the declaration: a manifest, or every fault in it
schema        the published schema, made of the declaration
files         which folders hold a manifest, and what each file comes to

A new key is a field in `declaration`; CONTRIBUTING says where else it goes.
Members, the web and commands use this; it knows no Django, and starts nothing.
"""
