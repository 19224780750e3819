"""The processes of the runtime. This package may import all packages below it.

guard           the parent: nothing that the worker started outlives it, however it ends; standard library only
pid_namespace   a command as process 1 of a pid namespace; standard library only
processes       the program that `manage.py up` becomes: runs guard and web, and ends both; standard library only
warm            forks them from `manage.py up`, so that the hall is imported only once; standard library only
fence           tells the guard when the worker has renewed its lease; standard library only
worker          the only child of the guard: takes the hall, and runs the runtime to its end
runtime         its parts (supervisor, dispatcher, gateway, agents), heartbeat, housekeeping and stopping
bootstep, tasks connect the runtime with a Celery worker; the tasks are notifications without data

These are separate programs, so no package imports this one. Interfaces get the commands that start them from guard,
pid_namespace and processes.
"""
