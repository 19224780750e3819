"""A separate program that puts a member into its sandbox, and then becomes the member's command.

policy        what a member may use, as JSON values
capabilities  what the kernel of this machine can enforce
command       the command line of the program
variables     the environment of the command, which is not that of the program
landlock      files, ports and signals, by Landlock (landlock(7))
mounts        modes, owners and times of files, by a read-only view of the file system
system_calls  what Landlock does not know, by a filter of system calls (seccomp(2))
program       applies a policy to its own process

The runtime spawns `python -I -S sandbox/ POLICY VARIABLES -- COMMAND...`. A sandbox holds for the process that entered
it, and for all that it starts, until they end. It cannot be left. The program uses only the standard library, and
imports little, because every start of a member waits for it.
"""
