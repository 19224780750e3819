"""The functions of the runtime for web and commands, by noun. They write the desired state, and notify the runtime.

members      start, stop, restart, refresh, enable, disable, reserve; tools; the roster as readers see it
proposals    propose, approve and discard new members; registry: look them up; trash: remove and restore them
calls        queue, cancel, wait for; arguments without secrets; statistics
agents       agents and their transcripts
nodes        the machines that run the hall, and their load
tokens       create a token with at most the creator's rights; revoke it with its calls
notify       notify the runtime of changed rows, through the broker if there is one

This package starts, stops and calls nothing. The runtime does, and sees every change within a second even without a
notification. Interfaces and the runtime import this package. A new verb goes into the module of its noun.
"""
