"""Tools in the admin.

screens      the list, a tool's page, its switch
runner       the form that calls one, and the arguments that people keep for it

Calls use `runner` for their progress. Nobody outside the admin imports this.
"""
