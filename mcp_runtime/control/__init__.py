"""All that web and commands use of the runtime, by noun. They write the desired state, and notify the runtime.

members      start, stop, restart, refresh, enable, disable, reserve; tools; the roster as readers see it
calls        queue, cancel, wait for; arguments as they may be shown; figures
sessions     agents' sessions and their transcripts
tokens       make one, never wider than who asks; revoke it with what was asked with it
notify       "look at the rows", through the broker if there is one

Nothing here starts, stops or calls anything itself. The runtime does, and sees every change within a second even when
no notification arrives. Interfaces and the runtime import it; a new verb goes into the module of its noun.
"""
