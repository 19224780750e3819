"""The contract of a tool, and of what else a member lists: its version, its changes, and signs of poisoning in it.

canonical      the canonical JSON of a definition, and its version
grades         the grades of changes, from notation to softened
changes        the changes between two definitions
schemas        the changes between two schemas
notation       schemas that mean the same, in one notation
texts          all texts of a definition
signs          the kinds of signs of poisoning, and the score
findings       signs of poisoning in a definition
mismatches     signs that have nothing to do with what a tool is for
shadowing      signs that concern the tools of other members
orders, behaviour, other_tools, secrecy, exfiltration, effects
               the texts that these three look for
words          the words that these texts share, and their patterns
mentions       decides whether such a text is said to a model, or only mentioned
characters     what a model reads in a text, and what people do not see in it
encodings      the texts that are encoded in a text
uri_templates  decides whether a URI may come from resource templates

Members, the gateway and control use this package. It uses no other package, no Django and no I/O.
"""
