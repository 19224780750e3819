"""The input schema of a tool: is it usable, do arguments fit it, where do they hold secrets.

validation     is the schema usable, do arguments fit it
secrets        where arguments hold secrets, and the arguments without them
guards         the library's validators without what a hostile schema could make endless
quick_checks   what is certainly valid, found out without the library
schema_work    what all that may cost, and how it leaves the interpreter to others

Members, calls, agents, the gateway and control use this room, and the web's turns `schema_work`.
It uses no other, and knows no Django and no I/O.
"""
