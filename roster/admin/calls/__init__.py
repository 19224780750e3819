"""Calls in the admin.

screens      a call's page, the list, and the actions
listing      the list's filters, search and pages, which are fast for any number of calls
comparison   two calls side by side
export       the filtered list as a file
results      the result of a call, shown by its content type. Agents' transcripts and the tool runner use it too

Only the admin imports this package.
"""
