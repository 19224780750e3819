"""Members in the admin.

roster       the hall's first page: a card per member
screens      the list, its actions, and what leads to a member's page
page         what that page shows
verbs        which of the verbs (start, stop...) apply to a member now, and why it does not run
history      changes of status, and ports

A new verb goes into `verbs`; a new fact about a member into `page`. Nobody outside the admin imports this.
"""
