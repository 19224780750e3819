"""Tools in the admin.

screens      the list, a tool's page, enable and disable
runner       the form of a call, and presets

Calls use `runner` for their progress. Only the admin imports this package.
"""
