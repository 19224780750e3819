"""Calls in the admin.

screens      a call's page, and the actions
list_screen  the list, with its live rows and its export
listing      the list's filters, search and pages, which are fast for any number of calls
lines        the rows of the list
saved        filters of the list that a user saved
comparison   two calls side by side
log          the lines that a member wrote during a call
results      the result of a call, shown by its content type. The tool runner uses it too
advice       what to do after a call that failed
drawing      the items of a result by their type. Prompts, resources and agents' transcripts use it too
items        items that are text or JSON, and descriptions in Markdown
json_view    JSON as trees and tables
ansi         the colours of a terminal
markdown     Markdown as safe HTML
files        the parts of a result as downloads

Only the admin imports this package.
"""
