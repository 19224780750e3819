"""The contract of a tool, and of what else a member lists: its version, its changes, and signs of poisoning in it.

canonical   the canonical JSON of a definition, and its version
grades      the grades of changes, from notation to softened
changes     the changes between two definitions
schemas     the changes between two schemas
notation    schemas that mean the same, in one notation
texts       all texts of a definition
findings    signs of poisoning in a definition, with a score
phrases     the texts that `findings` looks for

Members, the gateway and control use this package. It uses no other package, no Django and no I/O.
"""
