"""The processes of the runtime. Whoever is imported here has everything below it.

guard           the parent: whatever ends the worker, nothing that it started outlives it; standard library only
pid_namespace   a command as process 1 of a pid namespace; standard library only
processes       what `manage.py up` becomes: keeps guard and web up, and ends both; standard library only
warm            how `manage.py up` forks them, so that all of the hall is imported once; standard library only
worker          the one child: takes the hall, and runs the runtime to its end
runtime         its parts (supervisor, dispatcher, gateway, agents), heartbeat, housekeeping and stopping
bootstep, tasks hang the runtime on a Celery worker; the tasks notify, and carry nothing

Programs of their own: no room imports this one. Interfaces ask guard, pid_namespace and processes how they are started.
"""
