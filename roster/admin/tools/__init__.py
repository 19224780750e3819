"""Tools in the admin.

screens      the list, a tool's page, enable and disable
listing      the rows, groups and filters of the list
parameters   the parameters of a schema as a table
annotations  what a tool says about itself, and what is in the way of a call
runner       the page of a call, and presets
forms        the form of a call

Calls use `runner` for their progress. Only the admin imports this package.
"""
