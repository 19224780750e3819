"""guild-member.json: its keys, and reading the files in the members folder.

declaration   the type, the bounds and the meaning of each key; the class Manifest
parser        validates JSON values by the declaration. Returns a manifest, or raises all faults
schema        generates the published schema from the declaration
files         finds the folders with a manifest, and reads each file

A new key is a field in `declaration`. CONTRIBUTING names the other places.
Members, the web and commands use this package. It does not import Django, and starts nothing.
"""
