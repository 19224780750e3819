"""Agents that work with members of the hall, as rows and as processes.

transitions  create an agent, queue a message, stop; the only writer of a message's status
runner       the runtime's thread that claims messages and runs an agent for each
transcript   the events of an agent as rows
process      the agent as a process: its input, its events, its end; no Django
host         the program in that process, which uses the Agent SDK and none of our modules
setup        the requirements of an agent, and its environment

Control and the runtime use this package.
"""
