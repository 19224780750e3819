"""Members in the admin.

roster       the hall's first page: a card per member
screens      the list, its actions, and the views of a member's page
page         the contents of that page
verbs        which of the verbs (start, stop...) apply to a member now, and why it does not run
history      changes of status, and ports

A new verb goes into `verbs`, and a new fact about a member into `page`. Only the admin imports this package.
"""
