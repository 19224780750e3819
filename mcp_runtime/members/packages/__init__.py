"""Packages of members, installed once from a lock with hashes.

`lines` reads what npx and uvx would run. `npm` and `pypi` know how their programs make a lock and install from it.
`locks` keeps the locks as rows. `folders` has the installed packages. `steps` runs the programs, and `installer` puts
all of it together for one start of a member.
"""
