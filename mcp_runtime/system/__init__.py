"""The operating system and this process, as far as Python does not say it.

runtime_id   which process a runtime is, of all boots, containers and times
birthmark    a number that all who descend from a process keep
loops        event loops in threads of their own
parent       a signal when the parent dies
console      one form of log line

Every room may use this one; it uses no other, and knows no Django.
"""
