"""An agent at work with members of the hall: its session as rows, and its process.

sessions   make one, queue a message, stop; the only writer of a message's status
runner     the runtime's thread that claims messages and runs an agent for each
transcript what is kept of what it says
process    the agent as a process: what it is given, what it says, its end; no Django
host       the program in that process, which uses the Agent SDK and nothing of ours
setup      what an agent needs before it can run

Control and the runtime use this room.
"""
