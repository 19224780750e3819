"""Calls in the admin.

screens      a call's page, the list, and what can be done with a call
listing      the list's filters, search and pages, fast however many calls there are
comparison   two calls side by side
export       the filtered list as a file
results      what came of a call, shown for what it is; agents' transcripts and the tool runner show results by it, too

Nobody outside the admin imports this.
"""
