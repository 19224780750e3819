"""The input schema of a tool: whether it is usable, whether arguments fit it, and where arguments contain secrets.

validation     whether the schema is usable, and whether arguments fit it
secrets        the places of secrets in arguments, and the arguments without them
guards         the library's validators, without the parts that a hostile schema could make endless
quick_checks   fast checks for values that are certainly valid, without the library
schema_work    limits the time of all this work, and lets other threads use the interpreter

Members, calls, agents, the gateway and control use this package. The web's turns use `schema_work`. It uses no other
package, no Django and no I/O.
"""
