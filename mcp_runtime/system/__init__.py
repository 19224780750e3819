"""The operating system and this process, where Python has no function for it.

runtime_id   identifies the process of a runtime, across boots, containers and times
birthmark    a number that all descendants of a process inherit
loops        event loops in separate threads
parent       a signal when the parent dies
title        the name of this process in `ps`
console      log lines, all in one form

Every package may use this one. It uses no other package, and no Django.
"""
